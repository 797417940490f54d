-- Set the newest entries of replaced messages.
INSERT INTO penstock_newest (message, tenant, entry)
VALUES :rows
ON DUPLICATE KEY UPDATE entry = VALUES(entry)
