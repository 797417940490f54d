-- Some of the owners of a queue that was deleted. PostgreSQL needs the inner select for the
-- limit, and passes by what is locked.
DELETE FROM penstock_owner
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_owner
    WHERE queue = :queue
    ORDER BY partition_key
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
