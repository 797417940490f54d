-- Register a topic, or replace its policy.
INSERT INTO penstock_topic_policy (tenant, name, policy) VALUES (:tenant, :name, :policy)
ON CONFLICT (tenant, name) DO UPDATE SET policy = excluded.policy
