-- The newest entries of those of these messages that were replaced.
SELECT message, entry
FROM penstock_newest
WHERE message = ANY(:messages)
