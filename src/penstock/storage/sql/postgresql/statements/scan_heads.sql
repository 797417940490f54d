-- Segments of the tenant's log between two numbers, without payloads (L2). Rows are compared as a
-- whole so that only the index over tenants and segments can serve it.
SELECT segment, published_at, heads
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :first) AND (tenant, segment) <= (:tenant, :last)
ORDER BY tenant, segment
LIMIT :most
