-- Insert new keys. If one exists by now, the transaction is retried.
INSERT INTO penstock_key (tenant, topic, `key`, message)
VALUES :rows
