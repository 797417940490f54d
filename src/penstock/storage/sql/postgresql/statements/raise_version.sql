-- Raise the version of the tenant's catalog (R1).
UPDATE penstock_tenant SET version = version + 1 WHERE number = :tenant
