-- Lease a number that no server had before.
INSERT INTO penstock_server (number, holder, until) VALUES (:number, :holder, :until)
