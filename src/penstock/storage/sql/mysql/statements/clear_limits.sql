-- Remove the limits of a deleted queue.
DELETE FROM penstock_limit WHERE queue = :queue
