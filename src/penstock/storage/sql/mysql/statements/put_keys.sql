-- Set the messages of existing keys.
INSERT INTO penstock_key (tenant, topic, `key`, message)
VALUES :rows
ON DUPLICATE KEY UPDATE message = VALUES(message)
