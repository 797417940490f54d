-- What is available in the first segments of each of these partitions, fresh and returned: one
-- look into the index a segment (C4). All runs of a segment are read, since they interleave. It
-- is written so that one index alone serves each part (see ``partition_heads``).
WITH RECURSIVE step (partition_key, phase, nth, segment) AS (
    SELECT
        owner.partition_key,
        wanted.phase,
        1,
        (
            SELECT run.segment
            FROM penstock_run AS run
            WHERE run.queue = :queue AND run.partition_key IS NOT NULL
                AND (run.partition_key, run.phase) >= (owner.partition_key, wanted.phase)
                AND (run.partition_key, run.phase) <= (owner.partition_key, wanted.phase)
            ORDER BY run.partition_key, run.phase, run.segment
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
            WHERE run.queue = :queue AND run.partition_key IS NOT NULL
                AND (run.partition_key, run.phase, run.segment)
                > (step.partition_key, step.phase, step.segment)
                AND (run.partition_key, run.phase) <= (step.partition_key, step.phase)
            ORDER BY run.partition_key, run.phase, run.segment
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
    WHERE (segment, queue) >= (step.segment, :queue) AND (segment, queue) <= (step.segment, :queue)
        AND phase + 0 = step.phase AND coalesce(partition_key, '') = step.partition_key
    ORDER BY segment, queue
    OFFSET 0
) AS run
