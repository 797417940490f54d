-- Remove the owners of these partitions (O1).
DELETE gone
FROM (SELECT CAST(:partitions AS BINARY) AS partition_key) AS old
STRAIGHT_JOIN penstock_owner AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.partition_key = old.partition_key
