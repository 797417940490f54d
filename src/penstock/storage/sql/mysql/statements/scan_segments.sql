-- Segments of the tenant's log between two numbers, with payloads (L2).
SELECT segment, published_at, heads, payloads
FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :first AND segment <= :last
ORDER BY segment
LIMIT :most
