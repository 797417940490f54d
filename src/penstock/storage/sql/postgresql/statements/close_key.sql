-- From now on this key starts a new message.
DELETE FROM penstock_key
WHERE tenant = :tenant AND topic = :topic AND key = :key
