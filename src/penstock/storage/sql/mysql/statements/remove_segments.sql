-- Remove segments from the log (G1, A1).
DELETE gone
FROM (SELECT CAST(:numbers AS SIGNED) AS number) AS old
STRAIGHT_JOIN penstock_log AS gone FORCE INDEX (PRIMARY) ON gone.segment = old.number
