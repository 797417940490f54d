-- Segments of a tenant from one number to before another.
SELECT segment FROM penstock_log
WHERE tenant = :tenant AND segment >= :first AND segment < :last
ORDER BY segment
LIMIT :most
