-- Some of the counts of a queue that was deleted. PostgreSQL needs the inner select for the
-- limit, and passes by what is locked.
DELETE FROM penstock_tally
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_tally
    WHERE queue = :queue
    ORDER BY kind, number
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
