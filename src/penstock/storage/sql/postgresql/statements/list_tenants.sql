-- Tenants that have a queue or a topic or have ever published, by name. One lookup in the log per
-- tenant, regardless of its length.
SELECT tenant.name
FROM penstock_tenant AS tenant
WHERE tenant.trimmed IS NOT NULL
    OR EXISTS (SELECT 1 FROM penstock_queue WHERE penstock_queue.tenant = tenant.number)
    OR EXISTS (SELECT 1 FROM penstock_topic_policy AS topic WHERE topic.tenant = tenant.number)
    OR (SELECT 1 FROM penstock_log WHERE penstock_log.tenant = tenant.number LIMIT 1) IS NOT NULL
ORDER BY tenant.name
