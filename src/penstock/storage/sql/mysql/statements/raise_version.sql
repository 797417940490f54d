-- The catalog of the tenant has changed (R1).
UPDATE penstock_tenant FORCE INDEX (PRIMARY) SET version = version + 1 WHERE number = :tenant
