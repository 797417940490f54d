-- Add consolidated changes to the counts of their partitions (Q2).
INSERT INTO penstock_partition (queue, partition_key, unsettled)
VALUES :rows
ON DUPLICATE KEY UPDATE unsettled = unsettled + VALUES(unsettled)
