-- Write the last segment that is committed on the ticket; what this transaction appends is above it,
-- and readers stay below as long as it is open (L2): see tickets.py. It waits for nobody: where the
-- isolation is READ COMMITTED, InnoDB reads the log without locks.
UPDATE penstock_ticket
SET base = COALESCE((SELECT MAX(segment) FROM penstock_log), 0)
WHERE number = @penstock_ticket
