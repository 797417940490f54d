-- The limits of a queue that was deleted.
DELETE FROM penstock_limit WHERE queue = :queue
