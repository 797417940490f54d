-- Insert the ticket of a publishing transaction that has not read its base segment yet (L2): see
-- tickets.py.
INSERT INTO penstock_ticket (number, base) VALUES (@penstock_ticket := UUID_SHORT(), -1)
