-- Which migrations the database has; there is no table of them in an empty one.
SELECT number, name, checksum
FROM penstock_migration
WHERE applied_at IS NOT NULL
ORDER BY number
