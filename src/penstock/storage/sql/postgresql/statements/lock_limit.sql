-- Lock a limit of a queue against all other transactions, on all servers.
SELECT rate, milli_tokens, filled_at FROM penstock_limit
WHERE queue = :queue AND kind = :kind
FOR UPDATE
