-- Every partition that has something to deliver, by name: how much (from the counts), the number in
-- flight, the first message, the owner, and the queue's cursor (Q2). The place of a waiting run is the
-- id of its first message; in flight, its members begin with the index of the first. The phase is
-- written as in ``partition_heads``.
SELECT
    held.partition_key,
    held.unsettled,
    in_flight.size,
    least(in_flight.first, waiting.first) AS first,
    (
        SELECT owner.consumer
        FROM penstock_owner AS owner
        WHERE owner.queue = :queue AND owner.partition_key = held.partition_key
    ) AS consumer,
    (
        SELECT owner.epoch
        FROM penstock_owner AS owner
        WHERE owner.queue = :queue AND owner.partition_key = held.partition_key
    ) AS epoch,
    (SELECT queue.cursor FROM penstock_queue AS queue WHERE queue.number = :queue) AS cursor
FROM (
    SELECT counted.partition_key, sum(counted.unsettled) AS unsettled
    FROM (
        SELECT added.partition_key, added.unsettled
        FROM penstock_partition AS added
        WHERE added.queue = :queue
        UNION ALL
        SELECT tally.partition_key, tally.delta
        FROM penstock_partition_tally AS tally
        WHERE tally.queue = :queue
    ) AS counted
    GROUP BY counted.partition_key
    HAVING sum(counted.unsettled) <> 0
) AS held
CROSS JOIN LATERAL (
    SELECT
        coalesce(sum(run.size), 0) AS size,
        min(
            run.segment * 16384 + get_byte(run.members, 0) + 256 * get_byte(run.members, 1)
        ) AS first
    FROM penstock_run AS run
    WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase + 0 = 3
) AS in_flight
CROSS JOIN LATERAL (
    SELECT min(head.place) AS first
    FROM (VALUES (0), (1), (2)) AS wanted (phase)
    CROSS JOIN LATERAL (
        SELECT place
        FROM penstock_run
        WHERE queue = :queue AND partition_key = held.partition_key AND phase + 0 = wanted.phase
        ORDER BY place
        LIMIT 1
    ) AS head
) AS waiting
ORDER BY held.partition_key
