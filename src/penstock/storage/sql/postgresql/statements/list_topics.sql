-- The topics of a tenant that are registered, by name.
SELECT name, policy
FROM penstock_topic_policy
WHERE tenant = :tenant
ORDER BY name
