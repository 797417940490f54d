-- Count what has changed (Q2).
INSERT INTO penstock_tally (queue, kind, delta)
VALUES :rows
