-- Delete ids whose window is over (P4), the oldest first. PostgreSQL needs the inner SELECT for the
-- limit, and to skip locked rows.
DELETE FROM penstock_id
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_id
    WHERE until <= :now
    ORDER BY until
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
