-- Segments of a tenant from one number to before another.
SELECT segment FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :first AND segment < :last
ORDER BY segment
LIMIT :most
