-- Remove the counts of these partitions that have nothing left (Q2).
DELETE FROM penstock_partition AS added
WHERE added.queue = :queue AND added.partition_key = ANY(:partitions) AND added.unsettled = 0
