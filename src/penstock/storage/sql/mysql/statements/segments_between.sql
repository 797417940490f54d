-- Segments of a tenant from one number up to, but not including, another.
SELECT segment FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :first AND segment < :last
ORDER BY segment
LIMIT :most
