-- Tenants that have a queue or a topic or have ever published, by name.
SELECT tenant.name
FROM penstock_tenant AS tenant
WHERE tenant.trimmed IS NOT NULL
    OR EXISTS (SELECT 1 FROM penstock_queue WHERE penstock_queue.tenant = tenant.number)
    OR EXISTS (SELECT 1 FROM penstock_topic WHERE penstock_topic.tenant = tenant.number)
    OR EXISTS (SELECT 1 FROM penstock_log WHERE penstock_log.tenant = tenant.number)
ORDER BY tenant.name
