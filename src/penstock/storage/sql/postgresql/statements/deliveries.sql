-- Deliveries: claiming, settling, listing, and changes of their rows.

-- name: first_groups
-- Lock the first groups of each phase, in claim order, skipping locked ones (C1, C4). With floors,
-- every rank of fresh groups (0) starts at its own; no more rows are read and locked than returned.
SELECT first.*
FROM (
    SELECT run.*
    FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
    CROSS JOIN LATERAL (
        SELECT
            queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
        FROM penstock_run
        WHERE queue = :queue AND phase = 0 AND rank = ranks.nth - 1 AND row_key >= ranks.floor
        ORDER BY row_key
        LIMIT :most
        FOR UPDATE SKIP LOCKED
    ) AS run
    LIMIT :most
) AS first
UNION ALL
SELECT first.*
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase
        AND (wanted.phase > 0 OR cardinality(:floors::bigint[]) = 0)
    ORDER BY rank, row_key
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS first

-- name: look_at_first_groups
-- The same as first_groups, without locks: rows that are locked are returned too.
SELECT first.*
FROM (
    SELECT run.*
    FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
    CROSS JOIN LATERAL (
        SELECT
            queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
        FROM penstock_run
        WHERE queue = :queue AND phase = 0 AND rank = ranks.nth - 1 AND row_key >= ranks.floor
        ORDER BY row_key
        LIMIT :most
    ) AS run
    LIMIT :most
) AS first
UNION ALL
SELECT first.*
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase
        AND (wanted.phase > 0 OR cardinality(:floors::bigint[]) = 0)
    ORDER BY rank, row_key
    LIMIT :most
) AS first

-- name: first_row_keys
-- The first position of a phase per rank, at or above the floor of the rank.
SELECT ranks.nth - 1, run.row_key
FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
CROSS JOIN LATERAL (
    SELECT row_key
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = ranks.nth - 1 AND row_key >= ranks.floor
    ORDER BY row_key
    LIMIT 1
) AS run

-- name: first_group
-- Whether a phase has a group, locked or not (C5), at or above the floors of the ranks.
SELECT run.row_key
FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
CROSS JOIN LATERAL (
    SELECT row_key
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = ranks.nth - 1 AND row_key >= ranks.floor
    ORDER BY row_key
    LIMIT 1
) AS run
LIMIT 1

-- name: wait_for_first_group
-- The first group of a phase, at or above the floors of the ranks, after waiting for its lock (C5).
SELECT run.row_key
FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
CROSS JOIN LATERAL (
    SELECT row_key
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = ranks.nth - 1 AND row_key >= ranks.floor
    ORDER BY row_key
    LIMIT 1
    FOR UPDATE
) AS run
LIMIT 1

-- name: due_groups
-- Lock groups whose time has come, the earliest of every phase first. Locked groups are skipped, and
-- no more rows are read than returned.
SELECT due.queue, due.phase, due.rank, due.row_key, due.segment, due.size, due.until,
    due.partition_key, due.consumer, due.members, due.record
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase AND until <= :now
    ORDER BY until
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS due
LIMIT :most

-- name: next_due
-- When a group of these phases is next due or lapses: the first of each, by the index over until.
SELECT min(first.until)
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT until
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase AND until IS NOT NULL
    ORDER BY until
    LIMIT 1
) AS first

-- name: list_groups
-- Groups of one phase in the order of their positions, after a position and up to a rank.
SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run
WHERE queue = :queue AND phase = :phase AND (rank, row_key) > (:rank, :row_key) AND rank <= :last_rank
ORDER BY rank, row_key
LIMIT :most

-- name: lock_groups
-- Lock groups at these positions of one rank, in order. One primary-key lookup per position: a list
-- would be compared with every group of the phase.
SELECT run.queue, run.phase, run.rank, run.row_key, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.record
FROM (
    SELECT DISTINCT row_key FROM unnest(:row_keys::bigint[]) AS given (row_key) ORDER BY row_key
) AS wanted
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = :rank AND row_key = wanted.row_key
    FOR UPDATE
) AS run

-- name: lock_segment_groups
-- Lock the groups of these segments in these queues, in the order of the primary key. The index over
-- segments must be used: by the primary key, the whole queue would be read.
SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run
WHERE segment = ANY(:segments) AND queue + 0 = ANY(:queues) AND phase + 0 = ANY(:phases)
ORDER BY queue, phase, rank, row_key
FOR UPDATE

-- name: delayed_failures
-- Delayed failed deliveries of a queue after a position, in order.
SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run
WHERE queue = :queue AND phase = 12 AND (rank, row_key) > (:rank, :row_key)
ORDER BY rank, row_key
LIMIT :most

-- name: front_groups
-- The first group of every rank in some phases, all groups in flight and, if any has moved to the
-- back, the one with the lowest message. In one snapshot: a delivery that changes its phase is not
-- missed (Q2). Groups that moved have the message as their partition.
SELECT run.queue, run.phase, run.rank, run.row_key, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.record
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN generate_series(0, 9) AS lane (rank)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase AND rank = lane.rank
    ORDER BY row_key
    LIMIT 1
) AS run
UNION ALL
SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run
WHERE queue = :queue AND phase = :in_flight
UNION ALL
(
    SELECT queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run
    WHERE :moved AND queue = :queue AND partition_key IS NOT NULL
    ORDER BY partition_key
    LIMIT 1
)

-- name: tallies
-- The counters of a queue, by kind (Q2).
SELECT kind, sum(delta)::bigint
FROM penstock_tally
WHERE queue = :queue
GROUP BY kind

-- name: poll
-- The state of a queue by which a change is detected: its tenant's version, and its tally rows. The
-- newest row number alone would miss rows that are committed late (C5).
SELECT queue.number, tenant.version, COALESCE(MAX(tally.number), 0), COUNT(tally.number)
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
LEFT JOIN penstock_tally AS tally ON tally.queue = queue.number
WHERE queue.number = ANY(:queues)
GROUP BY queue.number, tenant.version
