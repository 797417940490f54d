-- Write what is left of a limit of a queue.
UPDATE penstock_limit
SET rate = :rate, milli_tokens = :milli_tokens, filled_at = :filled_at
WHERE queue = :queue AND kind = :kind
