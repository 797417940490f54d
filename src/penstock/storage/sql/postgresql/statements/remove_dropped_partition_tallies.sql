-- Remove some changes by partition of a deleted queue.
DELETE FROM penstock_partition_tally
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_partition_tally
    WHERE queue = :queue
    ORDER BY number
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
