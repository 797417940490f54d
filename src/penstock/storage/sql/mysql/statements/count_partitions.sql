-- Insert changes of the counts of partitions (Q2).
INSERT INTO penstock_partition_tally (queue, partition_key, delta)
VALUES :rows
