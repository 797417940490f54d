-- Write ids down unless they are there (P4). Whoever writes the same one waits for the first.
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token)
VALUES :rows
ON DUPLICATE KEY UPDATE token = penstock_id.token
