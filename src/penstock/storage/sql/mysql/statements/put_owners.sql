-- Set the owners of free partitions, each in a new epoch (O1).
INSERT INTO penstock_owner (queue, partition_key, consumer, epoch)
VALUES :rows
