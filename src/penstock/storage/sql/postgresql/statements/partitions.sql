-- Ordered queues: partitions, consumers and owners.

-- name: list_partitions
-- The number of partitions that have something to deliver, and the consumer's own and the free ones
-- (epoch null), by name (O1). One lookup per partition in each index, regardless of its size.
WITH RECURSIVE live (partition_key) AS (
    SELECT (
        SELECT run.partition_key
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key IS NOT NULL
        ORDER BY run.partition_key
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT run.partition_key
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key > live.partition_key
        ORDER BY run.partition_key
        LIMIT 1
    )
    FROM live
    WHERE live.partition_key IS NOT NULL
),
owned (partition_key, epoch) AS (
    SELECT
        live.partition_key,
        (
            SELECT CASE WHEN owner.consumer = :consumer THEN owner.epoch ELSE 0 END
            FROM penstock_owner AS owner
            WHERE owner.queue = :queue AND owner.partition_key = live.partition_key
        )
    FROM live
    WHERE live.partition_key IS NOT NULL
)
SELECT total.partitions, owned.partition_key, owned.epoch
FROM (SELECT count(*) AS partitions FROM owned) AS total
LEFT JOIN owned ON owned.epoch IS NULL OR owned.epoch > 0
ORDER BY owned.partition_key

-- name: partition_first_groups
-- For every partition of a consumer: the number in flight, and its first delayed, fresh and returned
-- groups, each as place * 16 + rank (C4). A place is the id of the group's first message. The phase is
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

-- name: partition_groups
-- The available runs in the first segments of each of these partitions, fresh and returned: one index
-- lookup per segment (C4). All groups of a partition in a segment are read, because they interleave.
-- The phase is written as in ``partition_first_groups``.
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

-- name: partition_stats
-- Every partition that has something to deliver, by name: how much (from the counts), the number in
-- flight, the first message, the owner, and the queue's cursor (Q2). The place of a waiting group is the
-- id of its first message; in flight, its members begin with the index of the first. The phase is
-- written as in ``partition_first_groups``.
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

-- name: partitions_in_flight
-- The groups in flight of these partitions: their consumers and keys. Reads all groups in flight of the
-- queue, by the primary key.
SELECT partition_key, consumer, rank, place
FROM penstock_run
WHERE queue = :queue AND phase = 3 AND coalesce(partition_key, '') = ANY(:partitions)
ORDER BY rank, place

-- name: list_consumers
-- The consumers of an ordered queue, and their deadlines (O1).
SELECT name, deadline FROM penstock_consumer WHERE queue = :queue

-- name: put_consumer
-- Set the heartbeat deadline of a consumer of an ordered queue (O1).
INSERT INTO penstock_consumer (queue, name, deadline) VALUES (:queue, :name, :deadline)
ON CONFLICT (queue, name) DO UPDATE SET deadline = excluded.deadline

-- name: drop_consumers
-- Remove these consumers.
DELETE FROM penstock_consumer WHERE queue = :queue AND name = ANY(:names)

-- name: clear_consumers
-- Remove all consumers of a queue.
DELETE FROM penstock_consumer WHERE queue = :queue

-- name: next_deadline
-- The first deadline of a consumer of an ordered queue that has live deliveries (O1, C5).
SELECT min(consumer.deadline)
FROM penstock_consumer AS consumer
WHERE consumer.queue = :queue AND EXISTS (
    SELECT 1
    FROM unnest(:phases::smallint[]) AS wanted (phase)
    CROSS JOIN LATERAL (
        SELECT place
        FROM penstock_run
        WHERE queue = :queue AND phase = wanted.phase
        ORDER BY rank, place
        LIMIT 1
    ) AS live
)

-- name: owned_partitions
-- The partitions of these consumers.
SELECT partition_key FROM penstock_owner WHERE queue = :queue AND consumer = ANY(:consumers)

-- name: put_owners
-- Set the owners of free partitions, each in a new epoch (O1).
INSERT INTO penstock_owner (queue, partition_key, consumer, epoch)
SELECT * FROM unnest($1::integer[], $2::bytea[], $3::text[], $4::bigint[])

-- name: release_owners
-- Remove the owners of these partitions (O1).
DELETE FROM penstock_owner WHERE queue = :queue AND partition_key = ANY(:partitions)

-- name: forget_owners
-- Remove the owners of partitions with nothing left to deliver (O1). Only live groups of an ordered
-- queue have a partition key; only the first group per partition is read.
DELETE FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.partition_key = ANY(:partitions) AND (
    SELECT phase
    FROM penstock_run AS run
    WHERE run.queue = :queue AND run.partition_key = owner.partition_key
    ORDER BY phase + 0, place
    LIMIT 1
) IS NULL

-- name: clear_owners
-- Remove all partition owners of a queue.
DELETE FROM penstock_owner WHERE queue = :queue

-- name: raise_epoch
-- Set the epoch of the partition that was taken last; the queue is locked.
UPDATE penstock_queue SET epoch = :epoch WHERE number = :queue
