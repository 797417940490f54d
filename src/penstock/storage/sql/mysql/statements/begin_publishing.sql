-- Write the last committed segment to the ticket. This transaction appends above it, and readers
-- stay below while it is open (L2): see tickets.py. It waits for no lock: under READ COMMITTED,
-- InnoDB reads the log without locks.
UPDATE penstock_ticket
SET base = COALESCE((SELECT MAX(segment) FROM penstock_log), 0)
WHERE number = @penstock_ticket
