-- Remove some counters of a deleted queue. The inner SELECT skips locked rows, which a DELETE cannot,
-- and must come first in the join.
DELETE gone
FROM (
    SELECT queue, kind, number FROM penstock_tally FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_tally AS gone
    ON gone.queue = old.queue AND gone.kind = old.kind AND gone.number = old.number
