-- Remove some replay ids of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to
-- skip locked rows.
DELETE FROM penstock_replayed
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_replayed
    WHERE queue = :queue
    ORDER BY dead, replay_id, message
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
