-- A partition with nothing left to deliver has no owner either (O1): see empty_partitions, which
-- comes first.
DELETE FROM penstock_owner
WHERE queue = :queue AND partition_key IN (:partitions)
