-- Those of these queues of which more changes by partition are not added up than this.
SELECT queue
FROM penstock_partition_tally FORCE INDEX (PRIMARY)
WHERE queue IN (:queues)
GROUP BY queue
HAVING COUNT(*) > :most
