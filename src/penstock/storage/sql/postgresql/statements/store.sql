-- The store: migrations, clock, identity, server numbers and documents.

-- name: migrations
-- The migrations of the database. An empty database does not have the table.
SELECT number, name, checksum
FROM penstock_migration
ORDER BY number

-- name: functions_checksum
-- The checksum of the functions of the database, which penstock migrate records in a comment.
SELECT obj_description(to_regproc('penstock_write'), 'pg_proc')

-- name: now
-- The database's clock, in epoch milliseconds.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint

-- name: find_identity
-- The identity of the store.
SELECT store, epoch, place FROM penstock_store WHERE one = 1

-- name: lock_identity
-- Lock the identity of the store until the transaction ends.
SELECT store, epoch, place FROM penstock_store WHERE one = 1 FOR UPDATE

-- name: make_identity
-- Insert the identity of a new store, unless another server was first.
INSERT INTO penstock_store (one, store, epoch, place) VALUES (1, :store, :epoch, :place)
ON CONFLICT (one) DO NOTHING

-- name: change_epoch
-- Set the epoch of the store, and the place that identifies its database.
UPDATE penstock_store SET epoch = :epoch, place = :place WHERE one = 1

-- name: place
-- Identifies the database. A restored dump creates another table, a copy is another database or
-- cluster, and a cluster that was restored to a point in time or promoted has another timeline.
SELECT format(
    'system=%s timeline=%s database=%s table=%s',
    cluster.system_identifier,
    left(pg_walfile_name(pg_current_wal_lsn()), 8),
    own.oid,
    'penstock_store'::regclass::oid
)
FROM pg_control_system() AS cluster
CROSS JOIN pg_database AS own
WHERE own.datname = current_database()

-- name: free_server_number
-- The server number whose lease ended first, if any has ended.
SELECT number FROM penstock_server
WHERE until <= :now
ORDER BY until
LIMIT 1
FOR UPDATE SKIP LOCKED

-- name: take_server_number
-- Lease a free number, which is locked.
UPDATE penstock_server SET holder = :holder, until = :until WHERE number = :number

-- name: add_server_number
-- Lease a number that no server had before.
INSERT INTO penstock_server (number, holder, until) VALUES (:number, :holder, :until)

-- name: last_server_number
-- The highest server number ever leased; 0 if there is none.
SELECT coalesce(max(number), 0) FROM penstock_server

-- name: renew_server_number
-- Renew the lease of a number, or end it, unless another server has the number now.
UPDATE penstock_server SET until = :until WHERE number = :number AND holder = :holder

-- name: get_document
-- One document.
SELECT value FROM penstock_document WHERE kind = :kind AND name = :name

-- name: lock_document
-- Lock one document.
SELECT value FROM penstock_document WHERE kind = :kind AND name = :name FOR UPDATE

-- name: add_document
-- Store a document unless there is one.
INSERT INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)
ON CONFLICT (kind, name) DO NOTHING

-- name: put_document
-- Store or replace a document.
INSERT INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)
ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value

-- name: delete_document
-- Remove a document.
DELETE FROM penstock_document WHERE kind = :kind AND name = :name

-- name: list_documents
-- All documents of a kind, by name.
SELECT name, value FROM penstock_document WHERE kind = :kind ORDER BY name
