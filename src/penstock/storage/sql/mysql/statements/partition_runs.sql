-- The available runs in the first segments of each of these partitions, fresh and returned (C4).
-- All runs of a segment are read, because they interleave.
WITH RECURSIVE step (partition_key, phase, nth, segment) AS (
    SELECT
        owner.partition_key,
        wanted.phase,
        1,
        (
            SELECT run.segment
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue
                AND run.partition_key = owner.partition_key AND run.phase = wanted.phase
            ORDER BY run.segment
            LIMIT 1
        )
    FROM penstock_owner AS owner
    CROSS JOIN (SELECT 0 AS phase UNION ALL SELECT 1 AS phase) AS wanted
    WHERE owner.queue = :queue AND owner.partition_key IN (:partitions)
    UNION ALL
    SELECT
        step.partition_key,
        step.phase,
        step.nth + 1,
        (
            SELECT run.segment
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = step.partition_key
                AND run.phase = step.phase AND run.segment > step.segment
            ORDER BY run.segment
            LIMIT 1
        )
    FROM step
    WHERE step.segment IS NOT NULL AND step.nth < :most
)
SELECT run.queue, run.phase, run.`rank`, run.place, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.life
FROM step
STRAIGHT_JOIN penstock_run AS run FORCE INDEX (penstock_run_partition)
    ON run.queue = :queue AND run.partition_key = step.partition_key
    AND run.phase = step.phase AND run.segment = step.segment
