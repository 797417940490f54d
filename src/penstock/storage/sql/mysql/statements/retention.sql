-- The sweep: counters, retention of the log, rows of deleted queues.

-- name: horizons
-- For every queue and phase the earliest until that has passed; for delayed failed deliveries (12),
-- whether there are any; as phase -1, when consumers missed their heartbeats.
SELECT tenant.name, tenant.version, queue.number, wanted.phase, (
    SELECT run.until
    FROM penstock_run AS run FORCE INDEX (penstock_run_until)
    WHERE run.queue = queue.number AND run.phase = wanted.phase
    ORDER BY run.until
    LIMIT 1
) AS earliest
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
CROSS JOIN (
    SELECT 0 AS phase UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 11 UNION ALL SELECT 12
    UNION ALL SELECT 13 UNION ALL SELECT 14
) AS wanted
HAVING earliest <= :now OR (phase = 12 AND earliest < 9223372036854775807)
UNION ALL
SELECT tenant.name, tenant.version, queue.number, -1, consumer.deadline
FROM penstock_consumer AS consumer
JOIN penstock_queue AS queue ON queue.number = consumer.queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
WHERE consumer.deadline <= :now

-- name: newest_tallies
-- For every queue the newest rows of the counters that change whenever it is used: available (1), in
-- flight (3), done (4), dead letters in flight (13), news (99).
SELECT tenant.name, queue.number,
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 1
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 3
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 4
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 13
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 99
        ORDER BY tally.number DESC LIMIT 1
    )
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant

-- name: tally_sizes
-- The counters of these queues that have more rows than this.
SELECT queue, kind
FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue IN (:queues)
GROUP BY queue, kind
HAVING COUNT(*) > :most

-- name: lock_tallies
-- Lock the oldest rows of one counter of a queue, skipping rows locked by other servers (Q2).
SELECT number, delta FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue = :queue AND kind = :kind
ORDER BY number
LIMIT :most
FOR UPDATE SKIP LOCKED

-- name: remove_tallies
-- Delete rows that the same commit replaces by their sum (Q2).
DELETE gone
FROM (SELECT CAST(:numbers AS SIGNED) AS number) AS old
STRAIGHT_JOIN penstock_tally AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.kind = :kind AND gone.number = old.number

-- name: partition_tally_sizes
-- These queues that have more than this many unconsolidated changes by partition.
SELECT queue
FROM penstock_partition_tally FORCE INDEX (PRIMARY)
WHERE queue IN (:queues)
GROUP BY queue
HAVING COUNT(*) > :most

-- name: lock_partition_tallies
-- Lock the oldest changes of a queue by partition, skipping rows locked by other servers (Q2).
SELECT number, partition_key, delta FROM penstock_partition_tally FORCE INDEX (PRIMARY)
WHERE queue = :queue
ORDER BY number
LIMIT :most
FOR UPDATE SKIP LOCKED

-- name: remove_partition_tallies
-- Delete changes that the same commit adds to their partitions (Q2).
DELETE gone
FROM (SELECT CAST(:numbers AS SIGNED) AS number) AS old
STRAIGHT_JOIN penstock_partition_tally AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.number = old.number

-- name: add_to_partitions
-- Add consolidated changes to the counts of their partitions (Q2).
INSERT INTO penstock_partition (queue, partition_key, unsettled)
VALUES :rows
ON DUPLICATE KEY UPDATE unsettled = unsettled + VALUES(unsettled)

-- name: remove_ended_partitions
-- Remove the counts of these partitions that have nothing left (Q2).
DELETE gone
FROM (SELECT CAST(:partitions AS BINARY) AS partition_key) AS old
STRAIGHT_JOIN penstock_partition AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.partition_key = old.partition_key
WHERE gone.unsettled = 0

-- name: old_segments
-- The next segments of the log, of all tenants; for those published long enough ago also a queue that
-- has deliveries of them and was not deleted, if there is one (G1).
SELECT log.segment, log.tenant, log.published_at, log.entries,
    CASE WHEN log.published_at <= :before THEN (
        SELECT run.queue
        FROM penstock_run AS run FORCE INDEX (penstock_run_segment)
        JOIN penstock_queue AS queue ON queue.number = run.queue
        WHERE run.segment = log.segment
        LIMIT 1
    ) END
FROM penstock_log AS log FORCE INDEX (PRIMARY)
WHERE log.segment > :after
ORDER BY log.segment
LIMIT :most

-- name: look_at_segments
-- These segments of the log, of all tenants; for those published long enough ago also a queue that
-- has deliveries of them and was not deleted, if there is one (G1).
SELECT log.segment, log.tenant, log.published_at, log.entries,
    CASE WHEN log.published_at <= :before THEN (
        SELECT run.queue
        FROM penstock_run AS run FORCE INDEX (penstock_run_segment)
        JOIN penstock_queue AS queue ON queue.number = run.queue
        WHERE run.segment = log.segment
        LIMIT 1
    ) END
FROM penstock_log AS log FORCE INDEX (PRIMARY)
WHERE log.segment IN (:numbers)
ORDER BY log.segment

-- name: needed_segments
-- The given segments that have deliveries in a queue (G1); deleted queues do not count.
SELECT DISTINCT run.segment
FROM penstock_run AS run FORCE INDEX (penstock_run_segment)
JOIN penstock_queue AS queue ON queue.number = run.queue
WHERE run.segment IN (:numbers)

-- name: lock_segments
-- Lock segments that may be removed. Those to which a transaction adds deliveries, or that another
-- server is about to remove, are skipped (G1).
SELECT segment, tenant, published_at, entries, metadata
FROM penstock_log FORCE INDEX (PRIMARY)
WHERE segment IN (:numbers)
ORDER BY segment
FOR UPDATE SKIP LOCKED

-- name: log_bounds
-- The bounds that retention must respect: how far the log is archived (A1), and the cursor of the
-- queue that is furthest behind (G1).
SELECT tenant.number, tenant.archived, (
    SELECT MIN(queue.`cursor`)
    FROM penstock_queue AS queue
    WHERE queue.tenant = tenant.number AND queue.`cursor` IS NOT NULL
)
FROM penstock_tenant AS tenant
WHERE tenant.number IN (:tenants)

-- name: remove_segments
-- Remove segments from the log (G1, A1).
DELETE gone
FROM (SELECT CAST(:numbers AS SIGNED) AS number) AS old
STRAIGHT_JOIN penstock_log AS gone FORCE INDEX (PRIMARY) ON gone.segment = old.number

-- name: trim_log
-- Record how far entries of the tenant were removed: its log does not end before that (L1).
UPDATE penstock_tenant FORCE INDEX (PRIMARY) SET trimmed = GREATEST(COALESCE(trimmed, 0), :through)
WHERE number = :tenant

-- name: archive_through
-- Record that every entry of the tenant up to here has a verified copy (A1).
UPDATE penstock_tenant FORCE INDEX (PRIMARY)
SET archived = GREATEST(COALESCE(archived, :through), :through)
WHERE number = :tenant

-- name: dropped_queues
-- Deleted queues, and when they were deleted.
SELECT queue, at FROM penstock_dropped
WHERE queue > :after
ORDER BY queue
LIMIT :most

-- name: remove_dropped_groups
-- Remove some groups of a deleted queue. The inner SELECT skips locked rows, which a DELETE cannot,
-- and must come first in the join.
DELETE gone
FROM (
    SELECT queue, phase, `rank`, row_key FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_run AS gone
    ON gone.queue = old.queue AND gone.phase = old.phase
    AND gone.`rank` = old.`rank` AND gone.row_key = old.row_key

-- name: remove_dropped_tallies
-- Remove some counters of a deleted queue. The inner SELECT skips locked rows, which a DELETE cannot,
-- and must come first in the join.
DELETE gone
FROM (
    SELECT queue, kind, number FROM penstock_tally FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_tally AS gone
    ON gone.queue = old.queue AND gone.kind = old.kind AND gone.number = old.number

-- name: remove_dropped_partitions
-- Remove some partition counts of a deleted queue; see ``remove_dropped_tallies``.
DELETE gone
FROM (
    SELECT queue, partition_key FROM penstock_partition FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_partition AS gone
    ON gone.queue = old.queue AND gone.partition_key = old.partition_key

-- name: remove_dropped_partition_tallies
-- Remove some changes by partition of a deleted queue; see ``remove_dropped_tallies``.
DELETE gone
FROM (
    SELECT queue, number FROM penstock_partition_tally FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_partition_tally AS gone
    ON gone.queue = old.queue AND gone.number = old.number

-- name: remove_dropped_owners
-- Remove some owners of a deleted queue. The inner SELECT skips locked rows, which a DELETE cannot,
-- and must come first in the join.
DELETE gone
FROM (
    SELECT queue, partition_key FROM penstock_owner FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_owner AS gone
    ON gone.queue = old.queue AND gone.partition_key = old.partition_key

-- name: remove_dropped_replays
-- Remove some replay ids of a deleted queue. The inner SELECT skips locked rows, which a DELETE
-- cannot, and must come first in the join.
DELETE gone
FROM (
    SELECT queue, dead, replay_id, message FROM penstock_replayed FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_replayed AS gone
    ON gone.queue = old.queue AND gone.dead = old.dead
    AND gone.replay_id = old.replay_id AND gone.message = old.message

-- name: forget_dropped
-- Forget a deleted queue that has no rows left and can get none.
DELETE FROM penstock_dropped WHERE queue = :queue
