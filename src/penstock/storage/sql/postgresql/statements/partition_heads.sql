-- Of every partition of a consumer: how much is in flight, and its first delayed, fresh and
-- returned runs, each as place * 16 + rank (C4). A place is the id of the run's first message; of
-- the first segment all runs are looked at, of others none. Every part is written so that one index
-- alone can serve it, by comparing and sorting rows: a planner that takes the table for a small
-- one would as soon read all of a queue by the primary key.
SELECT
    first.partition_key,
    first.in_flight,
    (
        SELECT min(head.place * 16 + head.rank)
        FROM (
            SELECT run.place, run.rank
            FROM penstock_run AS run
            WHERE (run.segment, run.queue) >= (first.delayed, :queue)
                AND (run.segment, run.queue) <= (first.delayed, :queue)
                AND run.phase + 0 = 2 AND coalesce(run.partition_key, '') = first.partition_key
            ORDER BY run.segment, run.queue
        ) AS head
    ) AS delayed,
    (
        SELECT min(head.place * 16 + head.rank)
        FROM (
            SELECT run.place, run.rank
            FROM penstock_run AS run
            WHERE (run.segment, run.queue) >= (first.fresh, :queue)
                AND (run.segment, run.queue) <= (first.fresh, :queue)
                AND run.phase + 0 = 0 AND coalesce(run.partition_key, '') = first.partition_key
            ORDER BY run.segment, run.queue
        ) AS head
    ) AS fresh,
    (
        SELECT min(head.place * 16 + head.rank)
        FROM (
            SELECT run.place, run.rank
            FROM penstock_run AS run
            WHERE (run.segment, run.queue) >= (first.returned, :queue)
                AND (run.segment, run.queue) <= (first.returned, :queue)
                AND run.phase + 0 = 1 AND coalesce(run.partition_key, '') = first.partition_key
            ORDER BY run.segment, run.queue
        ) AS head
    ) AS returned
FROM (
    SELECT
        owner.partition_key,
        (
            SELECT sum(held.size)
            FROM (
                SELECT run.size
                FROM penstock_run AS run
                WHERE run.queue = :queue AND run.partition_key IS NOT NULL
                    AND (run.partition_key, run.phase) >= (owner.partition_key, 3)
                    AND (run.partition_key, run.phase) <= (owner.partition_key, 3)
                ORDER BY run.partition_key, run.phase, run.segment
            ) AS held
        ) AS in_flight,
        (
            SELECT run.segment
            FROM penstock_run AS run
            WHERE run.queue = :queue AND run.partition_key IS NOT NULL
                AND (run.partition_key, run.phase) >= (owner.partition_key, 2)
                AND (run.partition_key, run.phase) <= (owner.partition_key, 2)
            ORDER BY run.partition_key, run.phase, run.segment
            LIMIT 1
        ) AS delayed,
        (
            SELECT run.segment
            FROM penstock_run AS run
            WHERE run.queue = :queue AND run.partition_key IS NOT NULL
                AND (run.partition_key, run.phase) >= (owner.partition_key, 0)
                AND (run.partition_key, run.phase) <= (owner.partition_key, 0)
            ORDER BY run.partition_key, run.phase, run.segment
            LIMIT 1
        ) AS fresh,
        (
            SELECT run.segment
            FROM penstock_run AS run
            WHERE run.queue = :queue AND run.partition_key IS NOT NULL
                AND (run.partition_key, run.phase) >= (owner.partition_key, 1)
                AND (run.partition_key, run.phase) <= (owner.partition_key, 1)
            ORDER BY run.partition_key, run.phase, run.segment
            LIMIT 1
        ) AS returned
    FROM penstock_owner AS owner
    WHERE owner.queue = :queue AND owner.consumer = :consumer
    OFFSET 0
) AS first
