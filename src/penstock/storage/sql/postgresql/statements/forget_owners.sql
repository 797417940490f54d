-- A partition with nothing left to deliver has no owner either (O1). Only what is live in an
-- ordered queue has a partition key; the first of a partition is looked up, never all of them.
DELETE FROM penstock_owner AS owner
WHERE owner.queue = :queue AND owner.partition_key = ANY(:partitions) AND (
    SELECT phase
    FROM penstock_run AS run
    WHERE run.queue = :queue AND run.partition_key = owner.partition_key
    ORDER BY phase + 0, place
    LIMIT 1
) IS NULL
