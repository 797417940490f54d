-- These partitions that have nothing left to deliver. Only live runs of an ordered queue have a
-- partition key.
SELECT owner.partition_key
FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.partition_key IN (:partitions) AND NOT EXISTS (
    SELECT 1
    FROM penstock_run AS run FORCE INDEX (penstock_run_partition)
    WHERE run.queue = owner.queue AND run.partition_key = owner.partition_key
)
