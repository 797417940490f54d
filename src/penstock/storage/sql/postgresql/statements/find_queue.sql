-- The number of a queue.
SELECT number FROM penstock_queue WHERE tenant = :tenant AND name = :name
