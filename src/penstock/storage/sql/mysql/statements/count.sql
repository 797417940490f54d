-- Insert changes of counters (Q2).
INSERT INTO penstock_tally (queue, kind, delta)
VALUES :rows
