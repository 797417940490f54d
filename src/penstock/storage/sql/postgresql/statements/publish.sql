-- Publishing: the end of the log, idempotency ids and batch ids, keys.

-- name: append
-- Append segments to the log, in order (L1).
INSERT INTO penstock_log (tenant, published_at, entries, metadata, payloads)
SELECT tenant, published_at, entries, metadata, payloads
FROM unnest($1::integer[], $2::bigint[], $3::integer[], $4::bytea[], $5::bytea[])
    WITH ORDINALITY AS new (tenant, published_at, entries, metadata, payloads, ordinal)
ORDER BY ordinal
RETURNING segment

-- name: announce_publishing
-- Hold a shared lock that announces that this transaction is about to name a segment, which
-- begin_publishing does: readers wait for that, so that no reader passes a number that is named
-- after its read.
SELECT pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid())

-- name: begin_publishing
-- Hold a shared lock that names the last segment assigned, until the transaction ends (L2).
-- This transaction appends above it; readers stay below while the lock is held. The number must be
-- read while the lock of announce_publishing is held, so this is a statement of its own.
SELECT pg_advisory_xact_lock_shared((20563::bigint << 48) | (last_value - (NOT is_called)::integer))
FROM penstock_log_segment_seq

-- name: given
-- The last segment number assigned, committed or not (L2). Sequences are not transactional.
SELECT last_value - (NOT is_called)::integer FROM penstock_log_segment_seq

-- name: oldest_publishing
-- The lowest segment that an open publishing transaction began at (L2), and how many are about to
-- name theirs: see announce_publishing. All locks are read in one snapshot.
SELECT min(publishing.began_at), count(*) FILTER (WHERE publishing.began_at IS NULL)
FROM (
    SELECT min((classid::bigint & 65535) << 32 | objid::bigint)
        FILTER (WHERE classid::bigint >> 16 = 20563) AS began_at
    FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 IN (20563, 20564)
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    GROUP BY virtualtransaction
) AS publishing

-- name: publish
-- Append segments, insert their fresh groups, and count those (P1, R1); the function is in
-- functions.sql. The lock comes before the function, which needs the tenant: see announce_publishing.
SELECT penstock_publish(
    begun.tenant, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14
) AS numbers
FROM (
    SELECT
        $1::integer AS tenant,
        pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid())
    OFFSET 0
) AS begun

-- name: write
-- Append segments, delete and write runs, count, and return the version of the catalog (S3, Q2, R1);
-- the function is in functions.sql.
SELECT catalog, written, numbers FROM penstock_write(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36
)

-- name: write_publishing
-- The same as write, for a publish that is its own transaction. The lock comes before the function,
-- which needs the tenant: see announce_publishing.
SELECT change.catalog, change.written, change.numbers
FROM (
    SELECT
        $1::integer AS tenant,
        pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid())
    OFFSET 0
) AS begun
CROSS JOIN LATERAL penstock_write(
    begun.tenant, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
    $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36
) AS change

-- name: write_first
-- The same as write, for a claim that did not read the first groups of its queue: nothing is written
-- unless exactly so many groups of these phases are at or before a position, as the claim assumes
-- (C4). No catalog has the version 0. As in first_groups, fresh groups below the floors are not read.
SELECT
    CASE WHEN front.is_known THEN change.catalog ELSE $3 END AS catalog,
    change.written,
    change.numbers
FROM (
    SELECT count(*) = $42::integer AS is_known
    FROM (
        SELECT FROM unnest($39::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
        CROSS JOIN LATERAL (
            SELECT FROM penstock_run
            WHERE queue = $37 AND phase = 0 AND rank = ranks.nth - 1 AND row_key >= ranks.floor
                AND (rank, row_key) <= ($40::integer, $41::bigint)
            LIMIT $42::integer + 1
        ) AS run
        WHERE ranks.nth <= $40::integer + 1
        UNION ALL
        SELECT FROM unnest($38::smallint[]) AS wanted (phase)
        CROSS JOIN LATERAL (
            SELECT FROM penstock_run
            WHERE queue = $37 AND phase = wanted.phase
                AND (rank, row_key) <= ($40::integer, $41::bigint)
                AND (wanted.phase > 0 OR cardinality($39::bigint[]) = 0)
            LIMIT $42::integer + 1
        ) AS run
    ) AS preceding
    OFFSET 0
) AS front
CROSS JOIN LATERAL penstock_write(
    $1, $2, CASE WHEN front.is_known THEN $3 ELSE 0 END, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13,
    $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32,
    $33, $34, $35, $36
) AS change

-- name: depths
-- The number of deliveries of these queues in these phases.
SELECT queue, sum(delta)::bigint
FROM penstock_tally
WHERE queue = ANY(:queues) AND kind = ANY(:kinds)
GROUP BY queue

-- name: claim_ids
-- Insert ids that do not exist (P4). A concurrent insert of the same id waits for the first.
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token)
SELECT * FROM unnest(
    $1::integer[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[],
    $7::bigint[]
)
ON CONFLICT (tenant, kind, topic, id) DO NOTHING

-- name: read_ids
-- Lock these ids of a topic, in order, and return their records (P4). One primary-key lookup per id:
-- a list would be compared with every id of the topic.
SELECT known.id, known.at, known.message, known.entry, known.reply, known.token
FROM (SELECT DISTINCT id FROM unnest(:ids::bytea[]) AS given (id) ORDER BY id) AS wanted
CROSS JOIN LATERAL (
    SELECT id, at, message, entry, reply, token
    FROM penstock_id
    WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id = wanted.id
    FOR UPDATE
) AS known

-- name: put_ids
-- Write the messages and replies of ids (P4).
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token, message, entry, reply)
SELECT * FROM unnest(
    $1::integer[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[]
)
ON CONFLICT (tenant, kind, topic, id) DO UPDATE SET
    at = EXCLUDED.at,
    until = EXCLUDED.until,
    token = EXCLUDED.token,
    message = EXCLUDED.message,
    entry = EXCLUDED.entry,
    reply = EXCLUDED.reply

-- name: find_batch
-- When a batch was published, its own window if it has one, and the reply.
SELECT at, message, reply FROM penstock_id
WHERE tenant = :tenant AND kind = 1 AND topic = :topic AND id = :id AND reply IS NOT NULL

-- name: find_id
-- When an idempotency id was published, and its message.
SELECT at, message FROM penstock_id
WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id = :id AND message IS NOT NULL

-- name: forget_ids
-- Delete ids whose batch was refused. One primary-key lookup per id, regardless of how many ids the
-- topic has.
DELETE FROM penstock_id
WHERE ctid = ANY(ARRAY(
    SELECT known.ctid
    FROM unnest(:ids::bytea[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM penstock_id
        WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id = given.id
        FOR UPDATE
    ) AS known
))

-- name: date_ids
-- Set the expiry of a topic's ids after its window changed (P4), except for batch ids with their
-- own window.
UPDATE penstock_id SET until = at + :window WHERE tenant = :tenant AND topic = :topic
    AND kind = :kind AND (kind <> 1 OR message IS NULL)

-- name: forget_overdue_ids
-- Delete ids whose window is over (P4), the oldest first. PostgreSQL needs the inner SELECT for the
-- limit, and to skip locked rows.
DELETE FROM penstock_id
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_id
    WHERE until <= :now
    ORDER BY until
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))

-- name: find_keys
-- The messages of these keys of a topic. One primary-key lookup per key, regardless of how many
-- keys the topic has.
SELECT known.key, known.message
FROM unnest(:keys::bytea[]) AS given (key)
CROSS JOIN LATERAL (
    SELECT key, message
    FROM penstock_key
    WHERE tenant = :tenant AND topic = :topic AND key = given.key
    LIMIT 1
) AS known

-- name: lock_keys
-- Lock these keys of a topic, in order, and return their messages. One primary-key lookup per key:
-- a list would be compared with every key of the topic.
SELECT known.key, known.message
FROM (SELECT DISTINCT key FROM unnest(:keys::bytea[]) AS given (key) ORDER BY key) AS wanted
CROSS JOIN LATERAL (
    SELECT key, message
    FROM penstock_key
    WHERE tenant = :tenant AND topic = :topic AND key = wanted.key
    FOR UPDATE
) AS known

-- name: open_keys
-- Insert new keys. If one exists by now, the transaction is retried.
INSERT INTO penstock_key (tenant, topic, key, message)
SELECT * FROM unnest($1::integer[], $2::text[], $3::bytea[], $4::bigint[])

-- name: put_keys
-- Set the messages of existing keys.
INSERT INTO penstock_key (tenant, topic, key, message)
SELECT * FROM unnest($1::integer[], $2::text[], $3::bytea[], $4::bigint[])
ON CONFLICT (tenant, topic, key) DO UPDATE SET message = EXCLUDED.message

-- name: close_key
-- Close a key: its next publish is a new message.
DELETE FROM penstock_key
WHERE tenant = :tenant AND topic = :topic AND key = :key

-- name: close_keys
-- Close the keys of these messages: their next publish is a new message.
DELETE FROM penstock_key
WHERE message = ANY(:messages)

-- name: find_newest
-- The newest entries of these messages, if they were replaced.
SELECT message, entry
FROM penstock_newest
WHERE message = ANY(:messages)

-- name: put_newest
-- Set the newest entries of replaced messages.
INSERT INTO penstock_newest (message, tenant, entry)
SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[])
ON CONFLICT (message) DO UPDATE SET entry = EXCLUDED.entry

-- name: forget_newest
-- Forget the newest entries of messages, if they are between two offsets and leave the log.
DELETE FROM penstock_newest
WHERE message = ANY(:messages) AND entry >= :first AND entry < :last
