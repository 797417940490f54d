-- Begin to keep a limit of a queue, unless that was done.
INSERT IGNORE INTO penstock_limit (queue, kind, rate, milli_tokens, filled_at)
VALUES (:queue, :kind, :rate, :milli_tokens, :filled_at)
