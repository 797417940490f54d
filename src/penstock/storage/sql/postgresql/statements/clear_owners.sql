-- Nobody owns a partition of the queue any more.
DELETE FROM penstock_owner WHERE queue = :queue
