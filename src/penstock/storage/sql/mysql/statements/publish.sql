-- Publishing: the end of the log, idempotency ids and batch ids, keys.

-- name: append
-- Append segments to the log, in order (L1).
INSERT INTO penstock_log (tenant, published_at, entries, metadata, payloads)
VALUES :rows

-- name: begin_publishing
-- Write the last committed segment to the ticket. This transaction appends above it, and readers
-- stay below while it is open (L2): see tickets.py. It waits for no lock: under READ COMMITTED,
-- InnoDB reads the log without locks.
UPDATE penstock_ticket
SET base = COALESCE((SELECT MAX(segment) FROM penstock_log), 0)
WHERE number = @penstock_ticket

-- name: take_ticket
-- Insert the ticket of a publishing transaction that has not read its base segment yet (L2): see
-- tickets.py.
INSERT INTO penstock_ticket (number, base) VALUES (@penstock_ticket := UUID_SHORT(), -1)

-- name: tickets
-- The tickets of publishing transactions, and the segment at which each began (L2).
SELECT number, base FROM penstock_ticket

-- name: clear_tickets
-- Remove tickets of committed transactions, without waiting for open ones.
DELETE gone
FROM (SELECT CAST(:numbers AS UNSIGNED) AS number) AS old
STRAIGHT_JOIN penstock_ticket AS gone FORCE INDEX (PRIMARY) ON gone.number = old.number

-- name: given
-- The last segment number assigned, committed or not (L2): from the rows, and from the counter,
-- because retention removes rows.
SELECT GREATEST(
    COALESCE((SELECT MAX(segment) FROM penstock_log), 0),
    COALESCE((
        SELECT CAST(`auto_increment` AS SIGNED) - 1
        FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name = 'penstock_log'
    ), 0)
)

-- name: version
-- The version of a tenant's catalog (R1).
SELECT version FROM penstock_tenant WHERE number = :tenant

-- name: count
-- Insert changes of counters (Q2).
INSERT INTO penstock_tally (queue, kind, delta)
VALUES :rows

-- name: count_partitions
-- Insert changes of the counts of partitions (Q2).
INSERT INTO penstock_partition_tally (queue, partition_key, delta)
VALUES :rows

-- name: depths
-- The number of deliveries of these queues in these phases.
SELECT queue, CAST(SUM(delta) AS SIGNED)
FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue IN (:queues) AND kind IN (:kinds)
GROUP BY queue

-- name: claim_ids
-- Insert ids that do not exist (P4). A concurrent insert of the same id waits for the first.
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token)
VALUES :rows
ON DUPLICATE KEY UPDATE token = penstock_id.token

-- name: read_ids
-- Lock these ids of a topic, in order, and return their records (P4).
SELECT id, at, message, entry, reply, token
FROM penstock_id FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id IN (:ids)
ORDER BY id
FOR UPDATE

-- name: put_ids
-- Write the messages and replies of ids (P4).
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token, message, entry, reply)
VALUES :rows
ON DUPLICATE KEY UPDATE
    at = VALUES(at), until = VALUES(until), token = VALUES(token),
    message = VALUES(message), entry = VALUES(entry), reply = VALUES(reply)

-- name: find_batch
-- When a batch was published, its own window if it has one, and the reply.
SELECT at, message, reply FROM penstock_id
WHERE tenant = :tenant AND kind = 1 AND topic = :topic AND id = :id AND reply IS NOT NULL

-- name: find_id
-- When an idempotency id was published, and its message.
SELECT at, message FROM penstock_id
WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id = :id AND message IS NOT NULL

-- name: forget_ids
-- Delete ids whose batch was refused.
DELETE gone
FROM (SELECT CAST(:ids AS BINARY) AS id) AS old
STRAIGHT_JOIN penstock_id AS gone FORCE INDEX (PRIMARY)
    ON gone.tenant = :tenant AND gone.kind = :kind AND gone.topic = :topic AND gone.id = old.id

-- name: date_ids
-- Set the expiry of a topic's ids after its window changed (P4), except for batch ids with their
-- own window.
UPDATE penstock_id FORCE INDEX (PRIMARY) SET until = at + :window
WHERE tenant = :tenant AND topic = :topic AND kind = :kind
    AND (kind <> 1 OR message IS NULL)

-- name: forget_overdue_ids
-- Delete ids whose window is over (P4), the oldest first. The inner SELECT skips locked rows, which
-- a DELETE cannot, and must come first in the join.
DELETE gone
FROM (
    SELECT tenant, kind, topic, id FROM penstock_id FORCE INDEX (penstock_id_until)
    WHERE until <= :now
    ORDER BY until
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_id AS gone
    ON gone.tenant = old.tenant AND gone.kind = old.kind
    AND gone.topic = old.topic AND gone.id = old.id

-- name: find_keys
-- The messages of these keys of a topic.
SELECT `key`, message
FROM penstock_key
WHERE tenant = :tenant AND topic = :topic AND `key` IN (:keys)

-- name: lock_keys
-- Lock these keys of a topic, in order, and return their messages.
SELECT `key`, message
FROM penstock_key FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND topic = :topic AND `key` IN (:keys)
ORDER BY `key`
FOR UPDATE

-- name: open_keys
-- Insert new keys. If one exists by now, the transaction is retried.
INSERT INTO penstock_key (tenant, topic, `key`, message)
VALUES :rows

-- name: put_keys
-- Set the messages of existing keys.
INSERT INTO penstock_key (tenant, topic, `key`, message)
VALUES :rows
ON DUPLICATE KEY UPDATE message = VALUES(message)

-- name: close_key
-- Close a key: its next publish is a new message.
DELETE FROM penstock_key
WHERE tenant = :tenant AND topic = :topic AND `key` = :key

-- name: close_keys
-- Close the keys of these messages: their next publish is a new message.
DELETE gone
FROM (SELECT CAST(:messages AS SIGNED) AS message) AS old
STRAIGHT_JOIN penstock_key AS gone FORCE INDEX (penstock_key_message)
    ON gone.message = old.message

-- name: find_newest
-- The newest entries of these messages, if they were replaced.
SELECT message, entry
FROM penstock_newest
WHERE message IN (:messages)

-- name: put_newest
-- Set the newest entries of replaced messages.
INSERT INTO penstock_newest (message, tenant, entry)
VALUES :rows
ON DUPLICATE KEY UPDATE entry = VALUES(entry)

-- name: forget_newest
-- Forget the newest entries of messages, if they are between two offsets and leave the log.
DELETE gone
FROM (SELECT CAST(:messages AS SIGNED) AS message) AS old
STRAIGHT_JOIN penstock_newest AS gone FORCE INDEX (PRIMARY)
    ON gone.message = old.message AND gone.entry >= :first AND gone.entry < :last
