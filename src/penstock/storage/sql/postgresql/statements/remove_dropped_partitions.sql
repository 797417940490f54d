-- Remove some partition counts of a deleted queue.
DELETE FROM penstock_partition
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_partition
    WHERE queue = :queue
    ORDER BY partition_key
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
