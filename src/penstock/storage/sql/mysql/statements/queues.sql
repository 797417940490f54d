-- The catalog: tenants, queues, topics, limits; partitions, consumers and owners of ordered queues.

-- name: find_tenant
-- A tenant's number, the version of its catalog, and the schema number.
SELECT number, version, (SELECT max(number) FROM penstock_migration WHERE applied_at IS NOT NULL)
FROM penstock_tenant
WHERE name = :name

-- name: make_tenant
-- Create a tenant on first use; concurrent servers may do the same.
INSERT INTO penstock_tenant (name)
VALUES (:name)
ON DUPLICATE KEY UPDATE name = penstock_tenant.name

-- name: list_tenants
-- Tenants that have a queue or a topic or have ever published, by name.
SELECT name
FROM penstock_tenant
WHERE trimmed IS NOT NULL
    OR EXISTS (SELECT 1 FROM penstock_queue WHERE penstock_queue.tenant = penstock_tenant.number)
    OR EXISTS (
        SELECT 1 FROM penstock_topic_policy AS topic WHERE topic.tenant = penstock_tenant.number
    )
    OR EXISTS (SELECT 1 FROM penstock_log WHERE penstock_log.tenant = penstock_tenant.number)
ORDER BY name

-- name: raise_version
-- Raise the version of the tenant's catalog (R1).
UPDATE penstock_tenant FORCE INDEX (PRIMARY) SET version = version + 1 WHERE number = :tenant

-- name: list_queues
-- The queues of a tenant, by name.
SELECT number, name, policy, filter_version, created_at, `cursor`, joining, dead_paused
FROM penstock_queue
WHERE tenant = :tenant
ORDER BY name

-- name: find_queue
-- The number of a queue.
SELECT number FROM penstock_queue WHERE tenant = :tenant AND name = :name

-- name: lock_queue
-- Lock the queue against other routers, replays and changes of partition ownership.
SELECT `cursor`, joining, closing, epoch FROM penstock_queue WHERE number = :queue FOR UPDATE

-- name: make_queue
-- Create a queue.
INSERT INTO penstock_queue (tenant, name, policy, created_at, `cursor`)
VALUES (:tenant, :name, :policy, :now, :cursor)

-- name: change_queue
-- Replace the policy of a queue.
UPDATE penstock_queue FORCE INDEX (PRIMARY) SET policy = :policy, filter_version = :filter_version
WHERE number = :queue

-- name: delete_queue
-- Delete a queue; the sweep removes its rows later.
DELETE FROM penstock_queue WHERE number = :queue

-- name: drop_queue
-- Record a deleted queue for the sweep.
INSERT INTO penstock_dropped (queue, at) VALUES (:queue, :now)

-- name: pause_dead_letters
-- Pause or resume the dead-letter queue.
UPDATE penstock_queue FORCE INDEX (PRIMARY) SET dead_paused = :paused WHERE number = :queue

-- name: read_cursor
-- The cursor of a queue (R1); null if it is caught up.
SELECT `cursor`
FROM penstock_queue
WHERE number = :queue

-- name: move_cursor
-- Set the routing state of a queue (R1).
UPDATE penstock_queue FORCE INDEX (PRIMARY)
SET `cursor` = :cursor, joining = :joining, closing = :closing
WHERE number = :queue

-- name: list_behind
-- Queues that must be caught up (R1) or backfilled, by the names of tenant and queue.
SELECT penstock_tenant.name, penstock_queue.name
FROM penstock_queue
JOIN penstock_tenant ON penstock_tenant.number = penstock_queue.tenant
WHERE penstock_queue.`cursor` IS NOT NULL OR penstock_queue.joining IS NOT NULL
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
ON DUPLICATE KEY UPDATE policy = VALUES(policy)

-- name: delete_topic
-- Delete a topic.
DELETE FROM penstock_topic_policy
WHERE tenant = :tenant AND name = :name

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
INSERT IGNORE INTO penstock_limit (queue, kind, rate, milli_tokens, filled_at)
VALUES (:queue, :kind, :rate, :milli_tokens, :filled_at)

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
-- (epoch null), by name (O1). MIN makes the server skip through the index, one lookup per partition.
WITH live AS (
    SELECT run.partition_key, MIN(run.phase)
    FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
    WHERE run.queue = :queue AND run.partition_key IS NOT NULL
    GROUP BY run.queue, run.partition_key
)
SELECT total.partitions, given.partition_key, given.epoch
FROM (SELECT COUNT(*) AS partitions FROM live) AS total
LEFT JOIN (
    SELECT live.partition_key, owner.epoch
    FROM live
    LEFT JOIN penstock_owner AS owner
        ON owner.queue = :queue AND owner.partition_key = live.partition_key
    WHERE owner.consumer IS NULL OR owner.consumer = :consumer
) AS given ON TRUE
ORDER BY given.partition_key

-- name: partition_first_groups
-- For every partition of a consumer: the number in flight, and its first delayed, fresh and returned
-- groups, each as row_key * 16 + rank (C4). A row_key is the id of the group's first message.
SELECT
    owner.partition_key,
    (
        SELECT CAST(SUM(run.size) AS SIGNED)
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 3
    ) AS in_flight,
    (
        SELECT run.row_key * 16 + run.`rank`
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 2
        ORDER BY run.segment, run.row_key
        LIMIT 1
    ) AS waiting,
    (
        SELECT run.row_key * 16 + run.`rank`
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 0
        ORDER BY run.segment, run.row_key
        LIMIT 1
    ) AS fresh,
    (
        SELECT run.row_key * 16 + run.`rank`
        FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
        WHERE run.queue = :queue AND run.partition_key = owner.partition_key AND run.phase = 1
        ORDER BY run.segment, run.row_key
        LIMIT 1
    ) AS returned
FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.consumer = :consumer

-- name: partition_groups
-- The available runs in the first segments of each of these partitions, fresh and returned (C4).
-- All groups of a segment are read, because they interleave.
WITH RECURSIVE step (partition_key, phase, nth, segment) AS (
    SELECT
        owner.partition_key,
        wanted.phase,
        1,
        (
            SELECT run.segment
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue
                AND run.partition_key = owner.partition_key AND run.phase = wanted.phase
            ORDER BY run.segment
            LIMIT 1
        )
    FROM penstock_owner AS owner
    CROSS JOIN (SELECT 0 AS phase UNION ALL SELECT 1 AS phase) AS wanted
    WHERE owner.queue = :queue AND owner.partition_key IN (:partitions)
    UNION ALL
    SELECT
        step.partition_key,
        step.phase,
        step.nth + 1,
        (
            SELECT run.segment
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = step.partition_key
                AND run.phase = step.phase AND run.segment > step.segment
            ORDER BY run.segment
            LIMIT 1
        )
    FROM step
    WHERE step.segment IS NOT NULL AND step.nth < :most
)
SELECT run.queue, run.phase, run.`rank`, run.row_key, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.record
FROM step
STRAIGHT_JOIN penstock_run AS run FORCE INDEX (penstock_run_partition)
    ON run.queue = :queue AND run.partition_key = step.partition_key
    AND run.phase = step.phase AND run.segment = step.segment

-- name: partition_stats
-- Every partition that has something to deliver, by name: how much (from the counts), the number in
-- flight, the first message, the owner, and the queue's cursor (Q2). The row_key of a waiting group is the
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
            SELECT run.row_key
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 0
            ORDER BY run.segment, run.row_key
            LIMIT 1
        ), 9223372036854775807),
        COALESCE((
            SELECT run.row_key
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 1
            ORDER BY run.segment, run.row_key
            LIMIT 1
        ), 9223372036854775807),
        COALESCE((
            SELECT run.row_key
            FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
            WHERE run.queue = :queue AND run.partition_key = held.partition_key AND run.phase = 2
            ORDER BY run.segment, run.row_key
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

-- name: partitions_in_flight
-- The groups in flight of these partitions: their consumers and keys.
SELECT partition_key, consumer, `rank`, row_key
FROM penstock_run FORCE INDEX (penstock_run_partition)
WHERE queue = :queue AND partition_key IN (:partitions) AND phase = 3

-- name: list_consumers
-- The consumers of an ordered queue, and their deadlines (O1).
SELECT name, deadline FROM penstock_consumer WHERE queue = :queue

-- name: put_consumer
-- Set the heartbeat deadline of a consumer of an ordered queue (O1).
INSERT INTO penstock_consumer (queue, name, deadline) VALUES (:queue, :name, :deadline)
ON DUPLICATE KEY UPDATE deadline = VALUES(deadline)

-- name: drop_consumers
-- Remove these consumers.
DELETE gone
FROM (SELECT CAST(:names AS CHAR) COLLATE utf8mb4_bin AS name) AS old
STRAIGHT_JOIN penstock_consumer AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.name = old.name

-- name: clear_consumers
-- Remove all consumers of a queue.
DELETE FROM penstock_consumer WHERE queue = :queue

-- name: next_deadline
-- The first deadline of a consumer of an ordered queue that has live deliveries (O1, C5).
SELECT MIN(deadline)
FROM penstock_consumer
WHERE queue = :queue AND EXISTS (
    SELECT 1
    FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE penstock_run.queue = :queue AND phase IN (:phases)
)

-- name: owned_partitions
-- The partitions of these consumers.
SELECT partition_key FROM penstock_owner WHERE queue = :queue AND consumer IN (:consumers)

-- name: put_owners
-- Set the owners of free partitions, each in a new epoch (O1).
INSERT INTO penstock_owner (queue, partition_key, consumer, epoch)
VALUES :rows

-- name: release_owners
-- Remove the owners of these partitions (O1).
DELETE gone
FROM (SELECT CAST(:partitions AS BINARY) AS partition_key) AS old
STRAIGHT_JOIN penstock_owner AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.partition_key = old.partition_key

-- name: empty_partitions
-- These partitions that have nothing left to deliver. Only live groups of an ordered queue have a
-- partition key.
SELECT owner.partition_key
FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.partition_key IN (:partitions) AND NOT EXISTS (
    SELECT 1
    FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
    WHERE run.queue = owner.queue AND run.partition_key = owner.partition_key
)

-- name: forget_owners
-- Remove the owners of partitions with nothing left to deliver (O1). empty_partitions has found
-- them before.
DELETE gone
FROM (SELECT CAST(:partitions AS BINARY) AS partition_key) AS old
STRAIGHT_JOIN penstock_owner AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.partition_key = old.partition_key

-- name: clear_owners
-- Remove all partition owners of a queue.
DELETE FROM penstock_owner WHERE queue = :queue

-- name: raise_epoch
-- Set the epoch of the partition that was taken last; the queue is locked.
UPDATE penstock_queue FORCE INDEX (PRIMARY) SET epoch = :epoch WHERE number = :queue
