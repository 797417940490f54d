-- The migrations of the database. An empty database does not have the table.
SELECT number, name, checksum
FROM penstock_migration
WHERE applied_at IS NOT NULL
ORDER BY number
