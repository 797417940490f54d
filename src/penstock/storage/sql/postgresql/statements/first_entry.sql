-- The first segment of the tenant's log at or after a segment and a time. Rows are compared as a
-- whole so that only the index over tenants and segments can serve it.
SELECT segment
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :segment) AND tenant <= :tenant
    AND published_at >= :published_at
ORDER BY tenant, segment
LIMIT 1
