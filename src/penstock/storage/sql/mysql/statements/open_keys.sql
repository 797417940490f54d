-- Keys that stand for nothing yet. If one does after all, the transaction is made again.
INSERT INTO penstock_key (tenant, topic, `key`, message)
VALUES :rows
