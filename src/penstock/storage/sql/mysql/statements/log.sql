-- Reading the log, and the deliveries of its segments.

-- name: log_end
-- The end of the removed part of a tenant's log, and the last segment up to a number that has
-- entries (L2).
SELECT tenant.trimmed, final.segment, final.entries
FROM penstock_tenant AS tenant
LEFT JOIN penstock_log AS final ON final.segment = (
    SELECT segment
    FROM penstock_log FORCE INDEX (penstock_log_tenant)
    WHERE penstock_log.tenant = :tenant AND segment <= :last AND entries > 0
    ORDER BY segment DESC
    LIMIT 1
)
WHERE tenant.number = :tenant

-- name: first_entry
-- The first segment of the tenant's log at or after a segment and a time.
SELECT segment FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :segment AND published_at >= :published_at
ORDER BY segment LIMIT 1

-- name: count_entries
-- The number of entries in a tenant's log from an offset on.
SELECT CAST(
    SUM(CASE WHEN segment > :segment THEN entries ELSE GREATEST(entries - :index, 0) END) AS SIGNED
)
FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :segment

-- name: log_pieces
-- The first segments of at most :most pieces of a tenant's log with about :entries entries each.
SELECT MIN(segment)
FROM (
    SELECT segment, (SUM(entries) OVER (ORDER BY segment) - entries)
        DIV GREATEST(:entries, SUM(entries) OVER () DIV :most + 1) AS piece
    FROM penstock_log FORCE INDEX (penstock_log_tenant)
    WHERE tenant = :tenant AND segment >= :first AND segment <= :last
) AS counted
GROUP BY piece
ORDER BY piece

-- name: read_metadata
-- Segments of a tenant's log without their payloads (T1).
SELECT segment, published_at, metadata
FROM penstock_log FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND segment IN (:numbers)

-- name: read_segments
-- Segments of a tenant's log with their payloads (T1).
SELECT segment, published_at, metadata, payloads
FROM penstock_log FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND segment IN (:numbers)

-- name: scan_metadata
-- Segments of the tenant's log between two numbers, without payloads (L2).
SELECT segment, published_at, metadata FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :first AND segment <= :last
ORDER BY segment LIMIT :most

-- name: scan_segments
-- Segments of the tenant's log between two numbers, with payloads (L2).
SELECT segment, published_at, metadata, payloads
FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :first AND segment <= :last
ORDER BY segment
LIMIT :most

-- name: segment_groups
-- The groups of some segments in some queues.
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (penstock_run_segment)
WHERE segment IN (:segments) AND queue IN (:queues)

-- name: share_segments
-- Lock these segments that are still in the log, so that they stay until this transaction ends: see
-- retention. Called before adding deliveries of old entries, with the segments of the messages and of
-- their newest entries; only messages that still have their newest entry may be added (G1).
SELECT segment FROM penstock_log FORCE INDEX (PRIMARY)
WHERE segment IN (:numbers)
ORDER BY segment
LOCK IN SHARE MODE

-- name: segments_between
-- Segments of a tenant from one number up to, but not including, another.
SELECT segment FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :first AND segment < :last
ORDER BY segment
LIMIT :most

-- name: stray_segments
-- Segments from a number on in which an ordered queue has live groups without a partition.
SELECT DISTINCT segment
FROM penstock_run FORCE INDEX (penstock_run_segment)
WHERE segment >= :first AND queue = :queue AND phase BETWEEN 0 AND 3 AND partition_key IS NULL
ORDER BY segment
LIMIT :most

-- name: find_replayed
-- These messages that the replay id has already moved.
SELECT message
FROM penstock_replayed
WHERE queue = :queue AND dead = :dead AND replay_id = :replay_id AND message IN (:messages)

-- name: put_replayed
-- Record the messages that a replay id has moved. A replay holds the queue, so there is no conflict.
INSERT INTO penstock_replayed (queue, dead, replay_id, message)
VALUES :rows

-- name: remove_drawn
-- Remove the empty segments whose numbers are drawn as positions. No other transaction sees them.
DELETE FROM penstock_log WHERE segment IN (:segments)
