-- Tenants that have a queue or a topic or have ever published, by name.
SELECT name
FROM penstock_tenant
WHERE trimmed IS NOT NULL
    OR EXISTS (SELECT 1 FROM penstock_queue WHERE penstock_queue.tenant = penstock_tenant.number)
    OR EXISTS (
        SELECT 1 FROM penstock_topic_policy AS topic WHERE topic.tenant = penstock_tenant.number
    )
    OR EXISTS (SELECT 1 FROM penstock_log WHERE penstock_log.tenant = penstock_tenant.number)
ORDER BY name
