-- Insert ids that do not exist (P4). A concurrent insert of the same id waits for the first.
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token)
VALUES :rows
ON DUPLICATE KEY UPDATE token = penstock_id.token
