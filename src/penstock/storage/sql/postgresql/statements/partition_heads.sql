-- Of every partition of a consumer: how much is in flight, and its first delayed, fresh and
-- returned runs, each as place * 16 + rank (C4). A place is the id of the run's first message;
-- of the first segment all runs are read, of others none.
SELECT
    owner.partition_key,
    (
        SELECT sum(run.size)
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 3
    ) AS in_flight,
    (
        SELECT min(run.place * 16 + run.rank)
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 2
            AND run.segment = (
                SELECT min(first.segment)
                FROM penstock_run AS first
                WHERE first.queue = :queue AND first.partition_key = owner.partition_key
                    AND first.phase = 2
            )
    ) AS delayed,
    (
        SELECT min(run.place * 16 + run.rank)
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 0
            AND run.segment = (
                SELECT min(first.segment)
                FROM penstock_run AS first
                WHERE first.queue = :queue AND first.partition_key = owner.partition_key
                    AND first.phase = 0
            )
    ) AS fresh,
    (
        SELECT min(run.place * 16 + run.rank)
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 1
            AND run.segment = (
                SELECT min(first.segment)
                FROM penstock_run AS first
                WHERE first.queue = :queue AND first.partition_key = owner.partition_key
                    AND first.phase = 1
            )
    ) AS returned
FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.consumer = :consumer
