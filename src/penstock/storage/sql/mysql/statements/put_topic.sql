-- Register a topic, or replace its policy.
INSERT INTO penstock_topic (tenant, name, policy) VALUES (:tenant, :name, :policy)
ON DUPLICATE KEY UPDATE policy = VALUES(policy)
