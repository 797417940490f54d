-- A tenant's number, the version of its catalog, and the schema number.
SELECT number, version, (SELECT max(number) FROM penstock_migration WHERE applied_at IS NOT NULL)
FROM penstock_tenant
WHERE name = :name
