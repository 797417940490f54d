-- The first segment of the tenant's log at or after a segment and a time. The row comparison makes
-- sure that the index over tenants and segments is used.
SELECT segment
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :segment) AND tenant <= :tenant
    AND published_at >= :published_at
ORDER BY tenant, segment
LIMIT 1
