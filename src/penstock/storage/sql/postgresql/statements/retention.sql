-- The sweep: counters, retention of the log, rows of deleted queues.

-- name: horizons
-- For every queue and phase the earliest until that has passed; for delayed failed deliveries (12),
-- whether there are any; as phase -1, when consumers missed their heartbeats.
SELECT tenant.name, tenant.version, queue.number, wanted.phase, first.until
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (11), (12), (13), (14)) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT run.until
    FROM penstock_run AS run
    WHERE run.queue = queue.number AND run.phase = wanted.phase AND run.until IS NOT NULL
    ORDER BY run.until
    LIMIT 1
) AS first
WHERE first.until <= :now OR wanted.phase = 12
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
        SELECT tally.number FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 1
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 3
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 4
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 13
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 99
        ORDER BY tally.number DESC LIMIT 1
    )
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant

-- name: tally_sizes
-- The counters of these queues that have more rows than this; no more rows than that are read.
SELECT used.queue, wanted.kind
FROM unnest(:queues::integer[]) AS used (queue)
CROSS JOIN (
    VALUES (1), (2), (3), (4), (5), (11), (12), (13), (14), (99),
        (100), (101), (102), (103), (110), (111), (112), (113)
) AS wanted (kind)
CROSS JOIN LATERAL (
    SELECT tally.number
    FROM penstock_tally AS tally
    WHERE tally.queue = used.queue AND tally.kind = wanted.kind
    ORDER BY tally.number
    LIMIT 1 OFFSET :most
) AS many

-- name: lock_tallies
-- Lock the oldest rows of one counter of a queue, skipping rows locked by other servers (Q2).
SELECT number, delta FROM penstock_tally
WHERE queue = :queue AND kind = :kind
ORDER BY number
LIMIT :most
FOR UPDATE SKIP LOCKED

-- name: remove_tallies
-- Delete locked rows that the same commit replaces by their sum (Q2). One primary-key lookup per row,
-- regardless of how many there are.
DELETE FROM penstock_tally
WHERE ctid = ANY(ARRAY(
    SELECT tally.ctid
    FROM unnest(:numbers::bigint[]) AS old (number)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM penstock_tally
        WHERE queue = :queue AND kind = :kind AND number = old.number
        LIMIT 1
    ) AS tally
))

-- name: partition_tally_sizes
-- These queues that have more than this many unconsolidated changes by partition.
SELECT used.queue
FROM unnest(:queues::integer[]) AS used (queue)
CROSS JOIN LATERAL (
    SELECT tally.number
    FROM penstock_partition_tally AS tally
    WHERE tally.queue = used.queue
    ORDER BY tally.number
    LIMIT 1 OFFSET :most
) AS many

-- name: lock_partition_tallies
-- Lock the oldest changes of a queue by partition, skipping rows locked by other servers (Q2).
SELECT number, partition_key, delta FROM penstock_partition_tally
WHERE queue = :queue
ORDER BY number
LIMIT :most
FOR UPDATE SKIP LOCKED

-- name: remove_partition_tallies
-- Delete locked changes that the same commit adds to their partitions (Q2). One primary-key lookup
-- per row, regardless of how many there are.
DELETE FROM penstock_partition_tally
WHERE ctid = ANY(ARRAY(
    SELECT tally.ctid
    FROM unnest(:numbers::bigint[]) AS old (number)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM penstock_partition_tally
        WHERE queue = :queue AND number = old.number
        LIMIT 1
    ) AS tally
))

-- name: add_to_partitions
-- Add consolidated changes to the counts of their partitions (Q2).
INSERT INTO penstock_partition AS added (queue, partition_key, unsettled)
SELECT * FROM unnest($1::integer[], $2::bytea[], $3::bigint[])
ON CONFLICT (queue, partition_key) DO UPDATE SET unsettled = added.unsettled + excluded.unsettled

-- name: remove_ended_partitions
-- Remove the counts of these partitions that have nothing left (Q2).
DELETE FROM penstock_partition AS added
WHERE added.queue = :queue AND added.partition_key = ANY(:partitions) AND added.unsettled = 0

-- name: old_segments
-- The next segments of the log, of all tenants; for those published long enough ago also a queue that
-- has deliveries of them and was not deleted, if there is one (G1).
SELECT log.segment, log.tenant, log.published_at, log.entries,
    CASE WHEN log.published_at <= :before THEN (
        SELECT run.queue
        FROM penstock_run AS run
        JOIN penstock_queue AS queue ON queue.number = run.queue
        WHERE run.segment = log.segment
        LIMIT 1
    ) END
FROM penstock_log AS log
WHERE log.segment > :after
ORDER BY log.segment
LIMIT :most

-- name: look_at_segments
-- These segments of the log, of all tenants; for those published long enough ago also a queue that
-- has deliveries of them and was not deleted, if there is one (G1).
SELECT log.segment, log.tenant, log.published_at, log.entries,
    CASE WHEN log.published_at <= :before THEN (
        SELECT run.queue
        FROM penstock_run AS run
        JOIN penstock_queue AS queue ON queue.number = run.queue
        WHERE run.segment = log.segment
        LIMIT 1
    ) END
FROM penstock_log AS log
WHERE log.segment = ANY(:numbers)
ORDER BY log.segment

-- name: needed_segments
-- The given segments that have deliveries in a queue (G1); deleted queues do not count.
SELECT wanted.segment
FROM unnest(:numbers::bigint[]) AS wanted (segment)
CROSS JOIN LATERAL (
    SELECT 1
    FROM penstock_run AS run
    JOIN penstock_queue AS queue ON queue.number = run.queue
    WHERE run.segment = wanted.segment
    LIMIT 1
) AS needed

-- name: lock_segments
-- Lock segments that may be removed. Those to which a transaction adds deliveries, or that another
-- server is about to remove, are skipped (G1).
SELECT segment, tenant, published_at, entries, metadata
FROM penstock_log
WHERE segment = ANY(:numbers)
ORDER BY segment
FOR UPDATE SKIP LOCKED

-- name: log_bounds
-- The bounds that retention must respect: how far the log is archived (A1), and the cursor of the
-- queue that is furthest behind (G1).
SELECT tenant.number, tenant.archived, (
    SELECT min(queue.cursor)
    FROM penstock_queue AS queue
    WHERE queue.tenant = tenant.number AND queue.cursor IS NOT NULL
)
FROM penstock_tenant AS tenant
WHERE tenant.number = ANY(:tenants)

-- name: remove_segments
-- Remove segments from the log (G1, A1).
DELETE FROM penstock_log WHERE segment = ANY(:numbers)

-- name: trim_log
-- Record how far entries of the tenant were removed: its log does not end before that (L1).
UPDATE penstock_tenant SET trimmed = GREATEST(COALESCE(trimmed, 0), :through)
WHERE number = :tenant

-- name: archive_through
-- Record that every entry of the tenant up to here has a verified copy (A1).
UPDATE penstock_tenant SET archived = GREATEST(COALESCE(archived, :through), :through)
WHERE number = :tenant

-- name: dropped_queues
-- Deleted queues, and when they were deleted.
SELECT queue, at FROM penstock_dropped
WHERE queue > :after
ORDER BY queue
LIMIT :most

-- name: remove_dropped_groups
-- Remove some groups of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to skip
-- locked rows.
DELETE FROM penstock_run
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_run
    WHERE queue = :queue
    ORDER BY phase, rank, row_key
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))

-- name: remove_dropped_tallies
-- Remove some counters of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to
-- skip locked rows.
DELETE FROM penstock_tally
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_tally
    WHERE queue = :queue
    ORDER BY kind, number
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))

-- name: remove_dropped_partitions
-- Remove some partition counts of a deleted queue.
DELETE FROM penstock_partition
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_partition
    WHERE queue = :queue
    ORDER BY partition_key
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))

-- name: remove_dropped_partition_tallies
-- Remove some changes by partition of a deleted queue.
DELETE FROM penstock_partition_tally
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_partition_tally
    WHERE queue = :queue
    ORDER BY number
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))

-- name: remove_dropped_owners
-- Remove some owners of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to skip
-- locked rows.
DELETE FROM penstock_owner
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_owner
    WHERE queue = :queue
    ORDER BY partition_key
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))

-- name: remove_dropped_replays
-- Remove some replay ids of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to
-- skip locked rows.
DELETE FROM penstock_replayed
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_replayed
    WHERE queue = :queue
    ORDER BY dead, replay_id, message
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))

-- name: forget_dropped
-- Forget a deleted queue that has no rows left and can get none.
DELETE FROM penstock_dropped WHERE queue = :queue
