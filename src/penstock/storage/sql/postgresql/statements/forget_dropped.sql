-- Nothing of the queue is left, and nobody can add to it any more.
DELETE FROM penstock_dropped WHERE queue = :queue
