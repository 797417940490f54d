-- Every partition that has something to deliver, by name: how much, what of it is in flight, the
-- first message, whose it is, and how far the queue is routed (Q2). In flight a run's first
-- message is in its members, which begin with its index.
SELECT held.partition_key, held.unsettled, held.in_flight, held.first, owner.consumer, owner.epoch,
    queue.`cursor`
FROM (
    SELECT
        run.partition_key,
        CAST(SUM(run.size) AS SIGNED) AS unsettled,
        CAST(SUM(CASE WHEN run.phase = 3 THEN run.size ELSE 0 END) AS SIGNED) AS in_flight,
        MIN(
            CASE
                WHEN run.phase = 3 THEN
                    run.segment * 16384 + ASCII(SUBSTRING(run.members, 1, 1))
                    + 256 * ASCII(SUBSTRING(run.members, 2, 1))
                ELSE run.place
            END
        ) AS first
    FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
    WHERE run.queue = :queue AND run.partition_key IS NOT NULL
    GROUP BY run.partition_key
) AS held
JOIN penstock_queue AS queue ON queue.number = :queue
LEFT JOIN penstock_owner AS owner
    ON owner.queue = :queue AND owner.partition_key = held.partition_key
ORDER BY held.partition_key
