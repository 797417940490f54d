-- Register a topic, or replace its policy.
INSERT INTO penstock_topic_policy (tenant, name, policy) VALUES (:tenant, :name, :policy)
ON DUPLICATE KEY UPDATE policy = VALUES(policy)
