-- Delete a topic.
DELETE FROM penstock_topic_policy WHERE tenant = :tenant AND name = :name
