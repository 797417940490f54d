-- Forget a deleted queue that has no rows left and can get none.
DELETE FROM penstock_dropped WHERE queue = :queue
