-- Lease a number that is free and locked.
UPDATE penstock_server SET holder = :holder, until = :until WHERE number = :number
