-- Nobody takes part in the queue any more.
DELETE FROM penstock_consumer WHERE queue = :queue
