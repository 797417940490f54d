-- Remove some runs of a deleted queue. PostgreSQL needs the inner SELECT for the limit, and to skip
-- locked rows.
DELETE FROM penstock_run
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM penstock_run
    WHERE queue = :queue
    ORDER BY phase, rank, place
    LIMIT :most
    FOR UPDATE SKIP LOCKED
))
