-- Segments of the tenant's log between two numbers, without payloads (L2).
SELECT segment, published_at, heads FROM penstock_log
WHERE tenant = :tenant AND segment >= :first AND segment <= :last
ORDER BY segment LIMIT :most
