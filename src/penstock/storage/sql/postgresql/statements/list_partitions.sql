-- The number of partitions that have something to deliver, and the consumer's own and the free ones
-- (epoch null), by name (O1). One lookup per partition in each index, regardless of its size.
WITH RECURSIVE live (partition_key) AS (
    SELECT (
        SELECT run.partition_key
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key IS NOT NULL
        ORDER BY run.partition_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT run.partition_key
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key > live.partition_key
        ORDER BY run.partition_key
        LIMIT 1
    )
    FROM live
    WHERE live.partition_key IS NOT NULL
),
owned (partition_key, epoch) AS (
    SELECT
        live.partition_key,
        (
            SELECT CASE WHEN owner.consumer = :consumer THEN owner.epoch ELSE 0 END
            FROM penstock_owner AS owner
            WHERE owner.queue = :queue AND owner.partition_key = live.partition_key
        )
    FROM live
    WHERE live.partition_key IS NOT NULL
)
SELECT total.partitions, owned.partition_key, owned.epoch
FROM (SELECT count(*) AS partitions FROM owned) AS total
LEFT JOIN owned ON owned.epoch IS NULL OR owned.epoch > 0
ORDER BY owned.partition_key
