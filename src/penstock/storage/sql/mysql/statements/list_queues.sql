-- The queues of a tenant, by name.
SELECT number, name, policy, filter_version, created_at, `cursor`, joining, dead_paused
FROM penstock_queue
WHERE tenant = :tenant
ORDER BY name
