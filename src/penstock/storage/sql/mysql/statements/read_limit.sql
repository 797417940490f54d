-- What is left of a limit of a queue.
SELECT rate, milli_tokens, filled_at FROM penstock_limit
WHERE queue = :queue AND kind = :kind
