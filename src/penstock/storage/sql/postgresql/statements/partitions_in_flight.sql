-- The runs in flight of these partitions: whose they are, and where to find them. It looks at all
-- that the queue has in flight, by the primary key.
SELECT partition_key, consumer, rank, place
FROM penstock_run
WHERE queue = :queue AND phase = 3 AND coalesce(partition_key, '') = ANY(:partitions)
ORDER BY rank, place
