-- A ticket that names the last segment that is committed; what this transaction appends is above
-- it, and readers stay below as long as it is open (L2): see tickets.py. As INSERT ... SELECT it
-- waits for nobody: InnoDB reads the log without locks, and no counter is locked.
INSERT INTO penstock_ticket (number, base)
SELECT UUID_SHORT(), COALESCE((SELECT MAX(segment) FROM penstock_log), 0)
