-- For every partition of a consumer: the number in flight, and its first delayed, fresh and returned
-- runs, each as place * 16 + rank (C4). A place is the id of the run's first message. The phase is
-- written as in the index over partitions, so that no other index is used.
SELECT
    owner.partition_key,
    (
        SELECT sum(run.size)
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 3
    ) AS in_flight,
    (
        SELECT run.place * 16 + run.rank
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 2
        ORDER BY run.place
        LIMIT 1
    ) AS delayed,
    (
        SELECT run.place * 16 + run.rank
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 0
        ORDER BY run.place
        LIMIT 1
    ) AS fresh,
    (
        SELECT run.place * 16 + run.rank
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 1
        ORDER BY run.place
        LIMIT 1
    ) AS returned
FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.consumer = :consumer
