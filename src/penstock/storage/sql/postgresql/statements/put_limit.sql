-- Insert a limit of a queue, unless it exists.
INSERT INTO penstock_limit (queue, kind, rate, milli_tokens, filled_at)
VALUES (:queue, :kind, :rate, :milli_tokens, :filled_at)
ON CONFLICT (queue, kind) DO NOTHING
