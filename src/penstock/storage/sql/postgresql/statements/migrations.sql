-- Which migrations the database has; there is no table of them in an empty one.
SELECT number, name, checksum
FROM penstock_migration
ORDER BY number
