-- Segments of the tenant's log between two numbers, without payloads (L2). The row comparison makes
-- sure that the index over tenants and segments is used.
SELECT segment, published_at, heads
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :first) AND (tenant, segment) <= (:tenant, :last)
ORDER BY tenant, segment
LIMIT :most
