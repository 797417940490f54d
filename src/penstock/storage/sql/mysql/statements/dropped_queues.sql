-- Deleted queues, and when they were deleted.
SELECT queue, at FROM penstock_dropped
WHERE queue > :after
ORDER BY queue
LIMIT :most
