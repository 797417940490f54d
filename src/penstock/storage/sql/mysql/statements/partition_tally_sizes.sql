-- These queues that have more than this many unconsolidated changes by partition.
SELECT queue
FROM penstock_partition_tally FORCE INDEX (PRIMARY)
WHERE queue IN (:queues)
GROUP BY queue
HAVING COUNT(*) > :most
