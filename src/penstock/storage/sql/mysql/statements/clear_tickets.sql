-- Remove tickets of committed transactions, without waiting for open ones.
DELETE gone
FROM (SELECT CAST(:numbers AS UNSIGNED) AS number) AS old
STRAIGHT_JOIN penstock_ticket AS gone FORCE INDEX (PRIMARY) ON gone.number = old.number
