-- Every partition that has something to deliver, by name: how much, what of it is in flight, the
-- first message, whose it is, and how far the queue is routed (Q2). In flight a run's first
-- message is in its members, which begin with its index.
SELECT
    held.partition_key,
    held.unsettled,
    held.in_flight,
    held.first,
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
    SELECT
        run.partition_key,
        sum(run.size) AS unsettled,
        sum(CASE WHEN run.phase = 3 THEN run.size ELSE 0 END) AS in_flight,
        min(
            CASE
                WHEN run.phase = 3 THEN
                    run.segment * 16384 + get_byte(run.members, 0) + 256 * get_byte(run.members, 1)
                ELSE run.place
            END
        ) AS first
    FROM penstock_run AS run
    WHERE run.queue = :queue AND run.phase BETWEEN 0 AND 3 AND run.partition_key IS NOT NULL
    GROUP BY run.partition_key
) AS held
ORDER BY held.partition_key
