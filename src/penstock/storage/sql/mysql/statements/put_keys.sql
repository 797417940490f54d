-- Keys that stand for other messages from now on.
INSERT INTO penstock_key (tenant, topic, `key`, message)
VALUES :rows
ON DUPLICATE KEY UPDATE message = VALUES(message)
