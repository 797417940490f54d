-- Forget ids whose window is over (P4), the oldest first. PostgreSQL needs the inner select for
-- the limit, and passes by what is locked.
DELETE FROM penstock_id
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_id
    WHERE until <= :now
    ORDER BY until
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
