-- The end of the removed part of a tenant's log, and the last segment up to a number that has entries
-- (L2). The row comparison makes sure that the index over tenants and segments is used.
SELECT tenant.trimmed, final.segment, final.entries
FROM penstock_tenant AS tenant
LEFT JOIN (
    SELECT tenant, segment, entries
    FROM penstock_log
    WHERE (tenant, segment) <= (:tenant, :last) AND entries > 0
    ORDER BY tenant DESC, segment DESC
    LIMIT 1
) AS final ON final.tenant = tenant.number
WHERE tenant.number = :tenant
