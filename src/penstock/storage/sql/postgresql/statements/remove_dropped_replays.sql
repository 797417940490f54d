-- Some of the replay ids of a queue that was deleted. PostgreSQL needs the inner select for the
-- limit, and passes by what is locked.
DELETE FROM penstock_replayed
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_replayed
    WHERE queue = :queue
    ORDER BY dead, replay_id, message
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
