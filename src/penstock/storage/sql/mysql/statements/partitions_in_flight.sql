-- The runs in flight of these partitions: their consumers and keys.
SELECT partition_key, consumer, `rank`, place
FROM penstock_run FORCE INDEX (penstock_run_partition)
WHERE queue = :queue AND partition_key IN (:partitions) AND phase = 3
