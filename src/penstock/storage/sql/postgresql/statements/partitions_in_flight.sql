-- The runs in flight of these partitions: their consumers and keys. Reads all runs in flight of the
-- queue, by the primary key.
SELECT partition_key, consumer, rank, place
FROM penstock_run
WHERE queue = :queue AND phase = 3 AND coalesce(partition_key, '') = ANY(:partitions)
ORDER BY rank, place
