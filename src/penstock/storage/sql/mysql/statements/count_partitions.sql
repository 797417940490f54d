-- Count what has changed by partition (Q2).
INSERT INTO penstock_partition_tally (queue, partition_key, delta)
VALUES :rows
