-- Reading the log, and the deliveries of its segments.

-- name: log_end
-- The end of the removed part of a tenant's log, and the last segment up to a number that has entries
-- (L2). The row comparison makes sure that the index over tenants and segments is used.
SELECT tenant.trimmed, final.segment, final.entries
FROM penstock_tenant AS tenant
LEFT JOIN (
    SELECT tenant, segment, entries
    FROM penstock_log
    WHERE (tenant, segment) <= (:tenant, :last) AND entries > 0
    ORDER BY tenant DESC, segment DESC
    LIMIT 1
) AS final ON final.tenant = tenant.number
WHERE tenant.number = :tenant

-- name: first_entry
-- The first segment of the tenant's log at or after a segment and a time. The row comparison makes
-- sure that the index over tenants and segments is used.
SELECT segment
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :segment) AND tenant <= :tenant
    AND published_at >= :published_at
ORDER BY tenant, segment
LIMIT 1

-- name: count_entries
-- The number of entries in a tenant's log from an offset on. The row comparison makes sure that
-- the index over tenants and segments is used.
SELECT sum(CASE WHEN segment > :segment THEN entries ELSE greatest(entries - :index, 0) END)::bigint
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :segment) AND tenant <= :tenant

-- name: log_pieces
-- The first segments of at most :most pieces of a tenant's log with about :entries entries each. The
-- row comparison makes sure that the index over tenants and segments is used.
SELECT min(segment)
FROM (
    SELECT segment, (sum(entries) OVER (ORDER BY segment) - entries)
        / greatest(:entries, sum(entries) OVER () / :most + 1) AS piece
    FROM penstock_log
    WHERE (tenant, segment) >= (:tenant, :first) AND (tenant, segment) <= (:tenant, :last)
) AS counted
GROUP BY piece
ORDER BY piece

-- name: read_metadata
-- Segments of a tenant's log without their payloads (T1).
SELECT segment, published_at, metadata
FROM penstock_log
WHERE tenant = :tenant AND segment = ANY(:numbers)

-- name: read_segments
-- Segments of a tenant's log with their payloads (T1).
SELECT segment, published_at, metadata, payloads
FROM penstock_log
WHERE tenant = :tenant AND segment = ANY(:numbers)

-- name: scan_metadata
-- Segments of the tenant's log between two numbers, without payloads (L2). The row comparison makes
-- sure that the index over tenants and segments is used.
SELECT segment, published_at, metadata
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :first) AND (tenant, segment) <= (:tenant, :last)
ORDER BY tenant, segment
LIMIT :most

-- name: scan_segments
-- Segments of the tenant's log between two numbers, with payloads (L2). The row comparison makes sure
-- that the index over tenants and segments is used.
SELECT segment, published_at, metadata, payloads
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :first) AND (tenant, segment) <= (:tenant, :last)
ORDER BY tenant, segment
LIMIT :most

-- name: segment_groups
-- The groups of some segments in some queues. The index over segments must be used: by the primary
-- key, the whole queue would be read.
SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run
WHERE segment = ANY(:segments) AND queue + 0 = ANY(:queues)

-- name: share_segments
-- Lock these segments that are still in the log, so that they stay until this transaction ends (G1):
-- see retention.
SELECT segment FROM penstock_log
WHERE segment = ANY(:numbers)
ORDER BY segment
FOR SHARE

-- name: segments_between
-- Segments of a tenant from one number up to, but not including, another.
SELECT segment FROM penstock_log
WHERE tenant = :tenant AND segment >= :first AND segment < :last
ORDER BY segment
LIMIT :most

-- name: stray_segments
-- Segments from a number on in which an ordered queue has live groups without a partition. The index
-- over segments must be used: by the primary key, the whole queue would be read.
SELECT DISTINCT segment
FROM penstock_run
WHERE segment >= :first AND queue + 0 = :queue AND phase + 0 BETWEEN 0 AND 3
    AND partition_key IS NULL
ORDER BY segment
LIMIT :most

-- name: find_replayed
-- These messages that the replay id has already moved. One primary-key lookup per message,
-- regardless of how many it has moved.
SELECT moved.message
FROM unnest(:messages::bigint[]) AS given (message)
CROSS JOIN LATERAL (
    SELECT message
    FROM penstock_replayed
    WHERE queue = :queue AND dead = :dead AND replay_id = :replay_id AND message = given.message
    LIMIT 1
) AS moved

-- name: put_replayed
-- Record the messages that a replay id has moved. A replay holds the queue, so there is no conflict.
INSERT INTO penstock_replayed (queue, dead, replay_id, message)
SELECT * FROM unnest($1::integer[], $2::boolean[], $3::text[], $4::bigint[])

-- name: remove_drawn
-- Remove the empty segments whose numbers are drawn as positions. No other transaction sees them.
DELETE FROM penstock_log WHERE segment = ANY(:segments)
