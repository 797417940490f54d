-- Lock the oldest changes of a queue by partition, skipping rows locked by other servers (Q2).
SELECT number, partition_key, delta FROM penstock_partition_tally FORCE INDEX (PRIMARY)
WHERE queue = :queue
ORDER BY number
LIMIT :most
FOR UPDATE SKIP LOCKED
