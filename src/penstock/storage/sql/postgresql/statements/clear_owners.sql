-- Remove all partition owners of a queue.
DELETE FROM penstock_owner WHERE queue = :queue
