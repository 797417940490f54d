-- The messages of these keys of a topic.
SELECT `key`, message
FROM penstock_key
WHERE tenant = :tenant AND topic = :topic AND `key` IN (:keys)
