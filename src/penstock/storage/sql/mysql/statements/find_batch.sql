-- When a batch was published, the window that it has of its own, and what was answered.
SELECT at, message, reply FROM penstock_id
WHERE tenant = :tenant AND kind = 1 AND topic = :topic AND id = :id AND reply IS NOT NULL
