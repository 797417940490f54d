-- What these keys of a topic stand for.
SELECT `key`, message
FROM penstock_key
WHERE tenant = :tenant AND topic = :topic AND `key` IN (:keys)
