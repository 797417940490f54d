-- Remove the owners of partitions with nothing left to deliver (O1). empty_partitions has found
-- them before.
DELETE gone
FROM (SELECT CAST(:partitions AS BINARY) AS partition_key) AS old
STRAIGHT_JOIN penstock_owner AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.partition_key = old.partition_key
