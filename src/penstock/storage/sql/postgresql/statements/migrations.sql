-- The migrations of the database. An empty database does not have the table.
SELECT number, name, checksum
FROM penstock_migration
ORDER BY number
