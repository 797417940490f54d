-- The runs in flight of these partitions: whose they are, and where to find them.
SELECT partition_key, consumer, `rank`, place
FROM penstock_run FORCE INDEX (penstock_run_partition)
WHERE queue = :queue AND partition_key IN (:partitions) AND phase = 3
