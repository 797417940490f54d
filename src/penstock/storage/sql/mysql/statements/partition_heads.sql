-- For every partition of a consumer: the number in flight, and its first delayed, fresh and returned
-- runs, each as place * 16 + rank (C4). A place is the id of the run's first message.
SELECT
    owner.partition_key,
    (
        SELECT CAST(SUM(run.size) AS SIGNED)
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 3
    ) AS in_flight,
    (
        SELECT run.place * 16 + run.`rank`
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 2
        ORDER BY run.segment, run.place
        LIMIT 1
    ) AS waiting,
    (
        SELECT run.place * 16 + run.`rank`
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 0
        ORDER BY run.segment, run.place
        LIMIT 1
    ) AS fresh,
    (
        SELECT run.place * 16 + run.`rank`
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 1
        ORDER BY run.segment, run.place
        LIMIT 1
    ) AS returned
FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.consumer = :consumer
