-- The registered topics of a tenant, by name.
SELECT name, policy
FROM penstock_topic_policy
WHERE tenant = :tenant
ORDER BY name
