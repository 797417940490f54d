-- How far a queue is routed (R1); null: it is caught up.
SELECT cursor
FROM penstock_queue
WHERE number = :queue
