-- Every partition that has something to deliver, by name: how much (from the counts), the number in
-- flight, the first message, the owner, and the queue's cursor (Q2). The place of a waiting run is the
-- id of its first message; in flight, its members begin with the index of the first.
SELECT held.partition_key, held.unsettled,
    (
        SELECT CAST(COALESCE(SUM(run.size), 0) AS SIGNED)
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 3
    ) AS in_flight,
    LEAST(
        COALESCE((
            SELECT MIN(
                run.segment * 16384 + ASCII(SUBSTRING(run.members, 1, 1))
                + 256 * ASCII(SUBSTRING(run.members, 2, 1))
            )
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 3
        ), 9223372036854775807),
        COALESCE((
            SELECT run.place
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 0
            ORDER BY run.segment, run.place
            LIMIT 1
        ), 9223372036854775807),
        COALESCE((
            SELECT run.place
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 1
            ORDER BY run.segment, run.place
            LIMIT 1
        ), 9223372036854775807),
        COALESCE((
            SELECT run.place
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 2
            ORDER BY run.segment, run.place
            LIMIT 1
        ), 9223372036854775807)
    ) AS first,
    owner.consumer, owner.epoch, queue.`cursor`
FROM (
    SELECT counted.partition_key, CAST(SUM(counted.unsettled) AS SIGNED) AS unsettled
    FROM (
        SELECT added.partition_key, added.unsettled
        FROM penstock_partition AS added
        WHERE added.queue = :queue
        UNION ALL
        SELECT tally.partition_key, tally.delta
        FROM penstock_partition_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = :queue
    ) AS counted
    GROUP BY counted.partition_key
    HAVING SUM(counted.unsettled) <> 0
) AS held
JOIN penstock_queue AS queue ON queue.number = :queue
LEFT JOIN penstock_owner AS owner
    ON owner.queue = :queue AND owner.partition_key = held.partition_key
ORDER BY held.partition_key
