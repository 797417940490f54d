-- Remove the counts of these partitions that have nothing left (Q2).
DELETE gone
FROM (SELECT CAST(:partitions AS BINARY) AS partition_key) AS old
STRAIGHT_JOIN penstock_partition AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.partition_key = old.partition_key
WHERE gone.unsettled = 0
