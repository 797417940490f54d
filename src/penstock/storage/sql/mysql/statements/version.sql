-- The version of a tenant's catalog (R1).
SELECT version FROM penstock_tenant WHERE number = :tenant
