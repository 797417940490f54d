-- Remove all consumers of a queue.
DELETE FROM penstock_consumer WHERE queue = :queue
