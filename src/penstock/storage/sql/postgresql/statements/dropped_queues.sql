-- Queues that were deleted, and when.
SELECT queue, at FROM penstock_dropped
WHERE queue > :after
ORDER BY queue
LIMIT :most
