-- Renew the lease of a number, or end it, unless another server has the number now.
UPDATE penstock_server SET until = :until WHERE number = :number AND holder = :holder
