-- Lock these keys of a topic, in order, and return their messages.
SELECT `key`, message
FROM penstock_key FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND topic = :topic AND `key` IN (:keys)
ORDER BY `key`
FOR UPDATE
