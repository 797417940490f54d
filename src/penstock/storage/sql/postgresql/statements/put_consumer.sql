-- A consumer takes part in an ordered queue until then, unless it is heard of again (O1).
INSERT INTO penstock_consumer (queue, name, deadline) VALUES (:queue, :name, :deadline)
ON CONFLICT (queue, name) DO UPDATE SET deadline = excluded.deadline
