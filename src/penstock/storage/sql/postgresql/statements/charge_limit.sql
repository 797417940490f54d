-- What is left of a limit of a queue after it was used.
UPDATE penstock_limit
SET rate = :rate, milli_tokens = :milli_tokens, filled_at = :filled_at
WHERE queue = :queue AND kind = :kind
