-- Delete changes that the same commit adds to their partitions (Q2).
DELETE gone
FROM (SELECT CAST(:numbers AS SIGNED) AS number) AS old
STRAIGHT_JOIN penstock_partition_tally AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.number = old.number
