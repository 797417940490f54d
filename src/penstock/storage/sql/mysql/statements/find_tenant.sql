-- A tenant's number, and the version of its catalog.
SELECT number, version
FROM penstock_tenant
WHERE name = :name
