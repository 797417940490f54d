-- The catalog: tenants, queues, topics, limits; partitions, consumers and owners of ordered queues.

-- name: find_tenant
-- A tenant's number, the version of its catalog, and the schema number.
SELECT number, version, (SELECT max(number) FROM penstock_migration)
FROM penstock_tenant
WHERE name = :name

-- name: make_tenant
-- Create a tenant on first use; concurrent servers may do the same.
INSERT INTO penstock_tenant (name)
VALUES (:name)
ON CONFLICT (name) DO NOTHING

-- name: list_tenants
-- Tenants that have a queue or a topic or have ever published, by name. One lookup in the log per
-- tenant, regardless of its length.
SELECT tenant.name
FROM penstock_tenant AS tenant
WHERE tenant.trimmed IS NOT NULL
    OR EXISTS (SELECT 1 FROM penstock_queue WHERE penstock_queue.tenant = tenant.number)
    OR EXISTS (SELECT 1 FROM penstock_topic_policy AS topic WHERE topic.tenant = tenant.number)
    OR (SELECT 1 FROM penstock_log WHERE penstock_log.tenant = tenant.number LIMIT 1) IS NOT NULL
ORDER BY tenant.name

-- name: raise_version
-- Raise the version of the tenant's catalog (R1).
UPDATE penstock_tenant SET version = version + 1 WHERE number = :tenant

-- name: list_queues
-- The queues of a tenant, by name.
SELECT number, name, policy, filter_version, created_at, cursor, joining, dead_paused
FROM penstock_queue
WHERE tenant = :tenant
ORDER BY name

-- name: find_queue
-- The number of a queue.
SELECT number FROM penstock_queue WHERE tenant = :tenant AND name = :name

-- name: lock_queue
-- Lock the queue against other routers, replays and changes of partition ownership.
SELECT cursor, joining, closing, epoch FROM penstock_queue WHERE number = :queue FOR UPDATE

-- name: make_queue
-- Create a queue.
INSERT INTO penstock_queue (tenant, name, policy, created_at, cursor)
VALUES (:tenant, :name, :policy, :now, :cursor)

-- name: change_queue
-- Replace the policy of a queue.
UPDATE penstock_queue SET policy = :policy, filter_version = :filter_version
WHERE number = :queue

-- name: delete_queue
-- Delete a queue; the sweep removes its rows later.
DELETE FROM penstock_queue WHERE number = :queue

-- name: drop_queue
-- Record a deleted queue for the sweep.
INSERT INTO penstock_dropped (queue, at) VALUES (:queue, :now)

-- name: pause_dead_letters
-- Pause or resume the dead-letter queue.
UPDATE penstock_queue SET dead_paused = :paused WHERE number = :queue

-- name: read_cursor
-- The cursor of a queue (R1); null if it is caught up.
SELECT cursor
FROM penstock_queue
WHERE number = :queue

-- name: move_cursor
-- Set the routing state of a queue (R1).
UPDATE penstock_queue SET cursor = :cursor, joining = :joining, closing = :closing
WHERE number = :queue

-- name: list_behind
-- Queues that must be caught up (R1) or backfilled, by the names of tenant and queue.
SELECT penstock_tenant.name, penstock_queue.name
FROM penstock_queue
JOIN penstock_tenant ON penstock_tenant.number = penstock_queue.tenant
WHERE penstock_queue.cursor IS NOT NULL OR penstock_queue.joining IS NOT NULL
ORDER BY penstock_tenant.name, penstock_queue.name

-- name: list_topics
-- The registered topics of a tenant, by name.
SELECT name, policy
FROM penstock_topic_policy
WHERE tenant = :tenant
ORDER BY name

-- name: put_topic
-- Register a topic, or replace its policy.
INSERT INTO penstock_topic_policy (tenant, name, policy) VALUES (:tenant, :name, :policy)
ON CONFLICT (tenant, name) DO UPDATE SET policy = excluded.policy

-- name: delete_topic
-- Delete a topic.
DELETE FROM penstock_topic_policy WHERE tenant = :tenant AND name = :name

-- name: lock_limit
-- Lock a limit of a queue against all other transactions, on all servers.
SELECT rate, milli_tokens, filled_at FROM penstock_limit
WHERE queue = :queue AND kind = :kind
FOR UPDATE

-- name: read_limit
-- What is left of a limit of a queue.
SELECT rate, milli_tokens, filled_at FROM penstock_limit
WHERE queue = :queue AND kind = :kind

-- name: put_limit
-- Insert a limit of a queue, unless it exists.
INSERT INTO penstock_limit (queue, kind, rate, milli_tokens, filled_at)
VALUES (:queue, :kind, :rate, :milli_tokens, :filled_at)
ON CONFLICT (queue, kind) DO NOTHING

-- name: charge_limit
-- Write what is left of a limit of a queue.
UPDATE penstock_limit
SET rate = :rate, milli_tokens = :milli_tokens, filled_at = :filled_at
WHERE queue = :queue AND kind = :kind

-- name: clear_limits
-- Remove the limits of a deleted queue.
DELETE FROM penstock_limit WHERE queue = :queue

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
-- groups, each as row_key * 16 + rank (C4). A row_key is the id of the group's first message. The phase is
-- written as in the index over partitions, so that no other index is used.
SELECT
    owner.partition_key,
    (
        SELECT sum(run.size)
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 3
    ) AS in_flight,
    (
        SELECT run.row_key * 16 + run.rank
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 2
        ORDER BY run.row_key
        LIMIT 1
    ) AS delayed,
    (
        SELECT run.row_key * 16 + run.rank
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 0
        ORDER BY run.row_key
        LIMIT 1
    ) AS fresh,
    (
        SELECT run.row_key * 16 + run.rank
        FROM penstock_run AS run
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase + 0 = 1
        ORDER BY run.row_key
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
            ORDER BY run.row_key
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
                AND run.phase + 0 = step.phase AND run.row_key >= (step.segment + 1) << 14
            ORDER BY run.row_key
            LIMIT 1
        )
    FROM step
    WHERE step.segment IS NOT NULL AND step.nth < :most
)
SELECT run.queue, run.phase, run.rank, run.row_key, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.record
FROM step
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run
    WHERE queue = :queue AND partition_key = step.partition_key AND phase + 0 = step.phase
        AND row_key >= step.segment << 14 AND row_key < (step.segment + 1) << 14
    OFFSET 0
) AS run

-- name: partition_stats
-- Every partition that has something to deliver, by name: how much (from the counts), the number in
-- flight, the first message, the owner, and the queue's cursor (Q2). The row_key of a waiting group is the
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
    SELECT min(head.row_key) AS first
    FROM (VALUES (0), (1), (2)) AS wanted (phase)
    CROSS JOIN LATERAL (
        SELECT row_key
        FROM penstock_run
        WHERE queue = :queue AND partition_key = held.partition_key AND phase + 0 = wanted.phase
        ORDER BY row_key
        LIMIT 1
    ) AS head
) AS waiting
ORDER BY held.partition_key

-- name: partitions_in_flight
-- The groups in flight of these partitions: their consumers and keys. Reads all groups in flight of the
-- queue, by the primary key.
SELECT partition_key, consumer, rank, row_key
FROM penstock_run
WHERE queue = :queue AND phase = 3 AND coalesce(partition_key, '') = ANY(:partitions)
ORDER BY rank, row_key

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
        SELECT row_key
        FROM penstock_run
        WHERE queue = :queue AND phase = wanted.phase
        ORDER BY rank, row_key
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
    ORDER BY phase + 0, row_key
    LIMIT 1
) IS NULL

-- name: clear_owners
-- Remove all partition owners of a queue.
DELETE FROM penstock_owner WHERE queue = :queue

-- name: raise_epoch
-- Set the epoch of the partition that was taken last; the queue is locked.
UPDATE penstock_queue SET epoch = :epoch WHERE number = :queue
