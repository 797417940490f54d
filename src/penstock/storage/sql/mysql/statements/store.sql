-- The store: migrations, clock, identity, server numbers and documents.

-- name: migrations
-- The migrations of the database. An empty database does not have the table.
SELECT number, name, checksum
FROM penstock_migration
WHERE applied_at IS NOT NULL
ORDER BY number

-- name: now
-- The database's clock, in epoch milliseconds.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP('1970-01-01'), UTC_TIMESTAMP(3)) DIV 1000

-- name: find_identity
-- The identity of the store.
SELECT store, epoch, place FROM penstock_store WHERE one = 1

-- name: lock_identity
-- Lock the identity of the store until the transaction ends.
SELECT store, epoch, place FROM penstock_store WHERE one = 1 FOR UPDATE

-- name: make_identity
-- Insert the identity of a new store, unless another server was first.
INSERT IGNORE INTO penstock_store (one, store, epoch, place) VALUES (1, :store, :epoch, :place)

-- name: change_epoch
-- Set the epoch of the store, and the place that identifies its database.
UPDATE penstock_store SET epoch = :epoch, place = :place WHERE one = 1

-- name: place
-- Identifies the database, by values that maintenance does not change: OPTIMIZE and ALTER create
-- another table, with another date, and a server's name and address change with its container. MySQL
-- has a random id in its data directory. MariaDB has none, but knows when a row was inserted, which
-- restoring a dump does anew. Each server skips the comment of the other.
SELECT CONCAT_WS(
    ' ',
    CONCAT('database=', HEX(DATABASE()))
    /*!80000 , CONCAT('server=', @@server_uuid) */
    /*M!100300 , (
        SELECT CONCAT('inserted=', UNIX_TIMESTAMP(ROW_START)) FROM penstock_place WHERE one = 1
    ) */
)

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
INSERT IGNORE INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)

-- name: put_document
-- Store or replace a document.
INSERT INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)
ON DUPLICATE KEY UPDATE value = VALUES(value)

-- name: delete_document
-- Remove a document.
DELETE FROM penstock_document WHERE kind = :kind AND name = :name

-- name: list_documents
-- All documents of a kind, by name.
SELECT CONVERT(name USING utf8mb4), value FROM penstock_document
WHERE kind = :kind
ORDER BY penstock_document.name
