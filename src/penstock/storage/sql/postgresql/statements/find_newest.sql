-- The newest entries of these messages, if they were replaced.
SELECT message, entry
FROM penstock_newest
WHERE message = ANY(:messages)
