-- Remove some owners of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to skip
-- locked rows.
DELETE FROM penstock_owner
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_owner
    WHERE queue = :queue
    ORDER BY partition_key
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
