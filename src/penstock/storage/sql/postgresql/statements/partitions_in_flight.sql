-- The runs in flight of these partitions: whose they are, and where to find them.
SELECT partition_key, consumer, rank, place
FROM penstock_run
WHERE queue = :queue AND partition_key = ANY(:partitions) AND phase = 3
