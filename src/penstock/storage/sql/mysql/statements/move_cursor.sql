-- Set the routing state of a queue (R1).
UPDATE penstock_queue FORCE INDEX (PRIMARY)
SET `cursor` = :cursor, joining = :joining, closing = :closing
WHERE number = :queue
