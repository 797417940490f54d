-- A tenant's number, the version of its catalog, and the schema number.
SELECT number, version, (SELECT max(number) FROM penstock_migration)
FROM penstock_tenant
WHERE name = :name
