-- Remove tickets whose transactions have committed, waiting for none that is open.
DELETE gone
FROM (SELECT CAST(:numbers AS UNSIGNED) AS number) AS old
STRAIGHT_JOIN penstock_ticket AS gone FORCE INDEX (PRIMARY) ON gone.number = old.number
