-- When a batch was published, its own window if it has one, and the reply.
SELECT at, message, reply FROM penstock_id
WHERE tenant = :tenant AND kind = 1 AND topic = :topic AND id = :id AND reply IS NOT NULL
