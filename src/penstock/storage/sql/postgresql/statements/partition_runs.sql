-- The available runs in the first segments of each of these partitions, fresh and returned: one index
-- lookup per segment (C4). All runs of a partition in a segment are read, because they interleave.
-- The phase is written as in ``partition_heads``.
WITH RECURSIVE step (partition_key, phase, nth, segment) AS (
    SELECT
        owner.partition_key,
        wanted.phase,
        1,
        (
            SELECT run.segment
            FROM penstock_run AS run
            WHERE run.queue = :queue AND run.partition_key = owner.partition_key
                AND run.phase + 0 = wanted.phase
            ORDER BY run.place
            LIMIT 1
        )
    FROM penstock_owner AS owner
    CROSS JOIN (SELECT 0 AS phase UNION ALL SELECT 1 AS phase) AS wanted
    WHERE owner.queue = :queue AND owner.partition_key = ANY(:partitions)
    UNION ALL
    SELECT
        step.partition_key,
        step.phase,
        step.nth + 1,
        (
            SELECT run.segment
            FROM penstock_run AS run
            WHERE run.queue = :queue AND run.partition_key = step.partition_key
                AND run.phase + 0 = step.phase AND run.place >= (step.segment + 1) << 14
            ORDER BY run.place
            LIMIT 1
        )
    FROM step
    WHERE step.segment IS NOT NULL AND step.nth < :most
)
SELECT run.queue, run.phase, run.rank, run.place, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.life
FROM step
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    FROM penstock_run
    WHERE queue = :queue AND partition_key = step.partition_key AND phase + 0 = step.phase
        AND place >= step.segment << 14 AND place < (step.segment + 1) << 14
    OFFSET 0
) AS run
