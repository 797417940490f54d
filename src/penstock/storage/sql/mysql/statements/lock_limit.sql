-- Lock a limit of a queue: whoever uses it goes alone, on all servers.
SELECT rate, milli_tokens, filled_at FROM penstock_limit
WHERE queue = :queue AND kind = :kind
FOR UPDATE
