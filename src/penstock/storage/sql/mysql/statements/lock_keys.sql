-- What these keys of a topic stand for, locked in the order of the keys.
SELECT `key`, message
FROM penstock_key FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND topic = :topic AND `key` IN (:keys)
ORDER BY `key`
FOR UPDATE
