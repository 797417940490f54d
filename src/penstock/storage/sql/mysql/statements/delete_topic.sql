-- Forget a topic.
DELETE FROM penstock_topic
WHERE tenant = :tenant AND name = :name
