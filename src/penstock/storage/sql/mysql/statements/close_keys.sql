-- From now on the keys of these messages start new messages.
DELETE FROM penstock_key
WHERE message IN (:messages)
