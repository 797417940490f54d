-- Remove segments from the log (G1, A1).
DELETE FROM penstock_log WHERE segment = ANY(:numbers)
