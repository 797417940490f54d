-- Remove the owners of partitions with nothing left to deliver (O1). Only live runs of an ordered
-- queue have a partition key; only the first run per partition is read.
DELETE FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.partition_key = ANY(:partitions) AND (
    SELECT phase
    FROM penstock_run AS run
    WHERE run.queue = :queue AND run.partition_key = owner.partition_key
    ORDER BY phase + 0, place
    LIMIT 1
) IS NULL
