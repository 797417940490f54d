-- Changes that were added up are part of how much their partitions have (Q2).
INSERT INTO penstock_partition (queue, partition_key, unsettled)
VALUES :rows
ON DUPLICATE KEY UPDATE unsettled = unsettled + VALUES(unsettled)
