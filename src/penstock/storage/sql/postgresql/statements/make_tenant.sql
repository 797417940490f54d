-- Create a tenant on first use; concurrent servers may do the same.
INSERT INTO penstock_tenant (name)
VALUES (:name)
ON CONFLICT (name) DO NOTHING
