-- Lock these ids of a topic, in order, and return their records (P4).
SELECT id, at, message, entry, reply, token
FROM penstock_id FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id IN (:ids)
ORDER BY id
FOR UPDATE
