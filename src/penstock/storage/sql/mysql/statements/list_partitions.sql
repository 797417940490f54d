-- The number of partitions that have something to deliver, and the consumer's own and the free ones
-- (epoch null), by name (O1). MIN makes the server skip through the index, one lookup per partition.
WITH live AS (
    SELECT run.partition_key, MIN(run.phase)
    FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
    WHERE run.queue = :queue AND run.partition_key IS NOT NULL
    GROUP BY run.queue, run.partition_key
)
SELECT total.partitions, given.partition_key, given.epoch
FROM (SELECT COUNT(*) AS partitions FROM live) AS total
LEFT JOIN (
    SELECT live.partition_key, owner.epoch
    FROM live
    LEFT JOIN penstock_owner AS owner
        ON owner.queue = :queue AND owner.partition_key = live.partition_key
    WHERE owner.consumer IS NULL OR owner.consumer = :consumer
) AS given ON TRUE
ORDER BY given.partition_key
