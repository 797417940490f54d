-- Set the heartbeat deadline of a consumer of an ordered queue (O1).
INSERT INTO penstock_consumer (queue, name, deadline) VALUES (:queue, :name, :deadline)
ON DUPLICATE KEY UPDATE deadline = VALUES(deadline)
