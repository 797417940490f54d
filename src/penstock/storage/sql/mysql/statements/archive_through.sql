-- Record that every entry of the tenant up to here has a verified copy (A1).
UPDATE penstock_tenant FORCE INDEX (PRIMARY)
SET archived = GREATEST(COALESCE(archived, :through), :through)
WHERE number = :tenant
