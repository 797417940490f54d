-- Remove a queue; what it holds is swept away later.
DELETE FROM penstock_queue WHERE number = :queue
