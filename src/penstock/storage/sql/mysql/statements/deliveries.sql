-- Deliveries: claiming, settling, listing, and changes of their rows.

-- name: first_groups
-- Lock the first groups of a phase, in claim order, skipping locked ones (C1, C4).
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase
ORDER BY `rank`, row_key
LIMIT :most
FOR UPDATE SKIP LOCKED

-- name: first_group
-- Whether a phase has a group, locked or not (C5).
SELECT row_key
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase
ORDER BY `rank`, row_key
LIMIT 1

-- name: wait_for_first_group
-- The first group of a phase, after waiting for its lock (C5).
SELECT row_key
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase
ORDER BY `rank`, row_key
LIMIT 1
FOR UPDATE

-- name: due_row_keys
-- The keys of groups whose time has come, the earliest of every phase first: see due_groups.
SELECT queue, phase, `rank`, row_key
FROM penstock_run FORCE INDEX (penstock_run_until)
WHERE queue = :queue AND phase IN (:phases) AND until <= :now
ORDER BY phase, until
LIMIT :most

-- name: due_groups
-- Lock groups of one rank whose time has come; locked ones are skipped. due_row_keys has found their
-- keys before.
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` = :rank AND row_key IN (:row_keys)
    AND until <= :now
ORDER BY row_key
FOR UPDATE SKIP LOCKED

-- name: next_due
-- When a group of these phases is next due or lapses: the first of each, by the index over until.
SELECT NULLIF(MIN((
    SELECT run.until
    FROM penstock_run AS run FORCE INDEX (penstock_run_until)
    WHERE run.queue = :queue AND run.phase = wanted.phase
    ORDER BY run.until
    LIMIT 1
)), 9223372036854775807)
FROM (
    SELECT 0 AS phase UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 11 UNION ALL SELECT 12 UNION ALL SELECT 13
) AS wanted
WHERE wanted.phase IN (:phases)

-- name: list_groups
-- Groups of one phase in the order of their positions, after a position and up to a rank.
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` <= :last_rank
    AND (`rank` > :rank OR (`rank` = :rank AND row_key > :row_key))
ORDER BY `rank`, row_key
LIMIT :most

-- name: lock_groups
-- Lock groups at these positions of one rank, in order.
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` = :rank AND row_key IN (:row_keys)
ORDER BY row_key
FOR UPDATE

-- name: lock_segment_groups
-- Lock the groups of these segments in these queues, segment by segment.
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (penstock_run_segment)
WHERE segment IN (:segments) AND queue IN (:queues) AND phase IN (:phases)
ORDER BY queue, phase, `rank`, row_key
FOR UPDATE

-- name: insert_groups
-- Insert runs. A key that is taken fails the transaction: no row is ever overwritten (C1).
INSERT INTO penstock_run (
    queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
)
VALUES :rows

-- name: replace_groups
-- Replace runs that this transaction has locked (S3).
INSERT INTO penstock_run (
    queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
)
VALUES :rows
ON DUPLICATE KEY UPDATE
    segment = VALUES(segment), size = VALUES(size), until = VALUES(until),
    partition_key = VALUES(partition_key), consumer = VALUES(consumer),
    members = VALUES(members), record = VALUES(record)

-- name: remove_groups
-- Delete groups of one rank (S3).
DELETE gone
FROM (SELECT CAST(:row_keys AS SIGNED) AS row_key) AS old
STRAIGHT_JOIN penstock_run AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.phase = :phase AND gone.`rank` = :rank
    AND gone.row_key = old.row_key

-- name: delayed_failures
-- Delayed failed deliveries of a queue after a position, in order.
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = 12 AND (`rank` > :rank OR (`rank` = :rank AND row_key > :row_key))
ORDER BY `rank`, row_key
LIMIT :most

-- name: front_groups
-- The first group of every rank in some phases, all groups in flight and, if any has moved to the
-- back, the one with the lowest message. In one snapshot: a delivery that changes its phase is not
-- missed (Q2). Groups that moved have the message as their partition.
SELECT run.queue, run.phase, run.`rank`, run.row_key, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.record
FROM (
    SELECT wanted.phase, lane.`rank`, (
        SELECT front.row_key
        FROM penstock_run AS front FORCE INDEX (PRIMARY)
        WHERE front.queue = :queue AND front.phase = wanted.phase AND front.`rank` = lane.`rank`
        ORDER BY front.row_key
        LIMIT 1
    ) AS row_key
    FROM (
        SELECT 0 AS phase UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
        UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 11 UNION ALL SELECT 12
        UNION ALL SELECT 13 UNION ALL SELECT 14
    ) AS wanted
    CROSS JOIN (
        SELECT 0 AS `rank` UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
        UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7
        UNION ALL SELECT 8 UNION ALL SELECT 9
    ) AS lane
    WHERE wanted.phase IN (:phases)
    LIMIT 1000
) AS first
STRAIGHT_JOIN penstock_run AS run FORCE INDEX (PRIMARY)
    ON run.queue = :queue AND run.phase = first.phase AND run.`rank` = first.`rank`
    AND run.row_key = first.row_key
UNION ALL
SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :in_flight
UNION ALL
(
    SELECT queue, phase, `rank`, row_key, segment, size, until, partition_key, consumer, members, record
    FROM penstock_run FORCE INDEX (penstock_run_partition)
    WHERE :moved AND queue = :queue AND partition_key IS NOT NULL
    ORDER BY partition_key
    LIMIT 1
)

-- name: tallies
-- The counters of a queue, by kind (Q2).
SELECT kind, CAST(SUM(delta) AS SIGNED)
FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue = :queue
GROUP BY kind

-- name: poll
-- The state of a queue by which a change is detected: its tenant's version, and its tally rows. The
-- newest row number alone would miss rows that are committed late (C5).
SELECT queue.number, tenant.version, COALESCE(MAX(tally.number), 0), COUNT(tally.number)
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
LEFT JOIN penstock_tally AS tally FORCE INDEX (PRIMARY) ON tally.queue = queue.number
WHERE queue.number IN (:queues)
GROUP BY queue.number, tenant.version
