-- Delete rows that the same commit replaces by their sum (Q2).
DELETE gone
FROM (SELECT CAST(:numbers AS SIGNED) AS number) AS old
STRAIGHT_JOIN penstock_tally AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.kind = :kind AND gone.number = old.number
