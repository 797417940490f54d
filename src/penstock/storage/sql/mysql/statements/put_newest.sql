-- The newest entries of messages that were replaced.
INSERT INTO penstock_newest (message, tenant, entry)
VALUES :rows
ON DUPLICATE KEY UPDATE entry = VALUES(entry)
