-- Set the routing state of a queue (R1).
UPDATE penstock_queue SET cursor = :cursor, joining = :joining, closing = :closing
WHERE number = :queue
