-- What these ids of a topic stand for, locked in the order of the ids (P4).
SELECT id, at, message, entry, reply, token
FROM penstock_id FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id IN (:ids)
ORDER BY id
FOR UPDATE
