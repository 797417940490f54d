-- The end of the removed part of a tenant's log, and the last segment up to a number that has
-- entries (L2).
SELECT tenant.trimmed, final.segment, final.entries
FROM penstock_tenant AS tenant
LEFT JOIN penstock_log AS final ON final.segment = (
    SELECT segment
    FROM penstock_log FORCE INDEX (penstock_log_tenant)
    WHERE penstock_log.tenant = :tenant AND segment <= :last AND entries > 0
    ORDER BY segment DESC
    LIMIT 1
)
WHERE tenant.number = :tenant
