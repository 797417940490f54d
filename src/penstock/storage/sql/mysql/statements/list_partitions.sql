-- How many partitions have something to deliver, and those that are the consumer's, or nobody's
-- (epoch null), by name (O1). One look into the index a partition, however much it holds.
WITH RECURSIVE live (partition_key) AS (
    SELECT (
        SELECT run.partition_key
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key IS NOT NULL
        ORDER BY run.partition_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT run.partition_key
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key > live.partition_key
        ORDER BY run.partition_key
        LIMIT 1
    )
    FROM live
    WHERE live.partition_key IS NOT NULL
)
SELECT total.partitions, given.partition_key, given.epoch
FROM (SELECT COUNT(partition_key) AS partitions FROM live) AS total
LEFT JOIN (
    SELECT live.partition_key, owner.epoch
    FROM live
    LEFT JOIN penstock_owner AS owner
        ON owner.queue = :queue AND owner.partition_key = live.partition_key
    WHERE live.partition_key IS NOT NULL
        AND (owner.consumer IS NULL OR owner.consumer = :consumer)
) AS given ON TRUE
ORDER BY given.partition_key
