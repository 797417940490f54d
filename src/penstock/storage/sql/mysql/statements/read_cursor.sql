-- The cursor of a queue (R1); null if it is caught up.
SELECT `cursor`
FROM penstock_queue
WHERE number = :queue
