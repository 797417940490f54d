-- Record how far entries of the tenant were removed: its log does not end before that (L1).
UPDATE penstock_tenant FORCE INDEX (PRIMARY) SET trimmed = GREATEST(COALESCE(trimmed, 0), :through)
WHERE number = :tenant
