-- These partitions are nobody's any more (O1).
DELETE FROM penstock_owner WHERE queue = :queue AND partition_key IN (:partitions)
