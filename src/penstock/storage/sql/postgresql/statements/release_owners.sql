-- Remove the owners of these partitions (O1).
DELETE FROM penstock_owner WHERE queue = :queue AND partition_key = ANY(:partitions)
