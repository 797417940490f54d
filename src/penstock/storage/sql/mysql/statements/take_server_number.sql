-- Lease a free number, which is locked.
UPDATE penstock_server SET holder = :holder, until = :until WHERE number = :number
