-- Partitions that were nobody's have an owner, each in an epoch of its own (O1).
INSERT INTO penstock_owner (queue, partition_key, consumer, epoch)
VALUES :rows
