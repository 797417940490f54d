-- Remove some counters of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to
-- skip locked rows.
DELETE FROM penstock_tally
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_tally
    WHERE queue = :queue
    ORDER BY kind, number
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
