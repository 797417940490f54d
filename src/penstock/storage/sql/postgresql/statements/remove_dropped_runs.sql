-- Some of the deliveries of a queue that was deleted. PostgreSQL needs the inner select for the
-- limit, and passes by what is locked.
DELETE FROM penstock_run
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_run
    WHERE queue = :queue
    ORDER BY phase, rank, place
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
