-- Remove some runs of a deleted queue. The inner SELECT skips locked rows, which a DELETE cannot,
-- and must come first in the join.
DELETE gone
FROM (
    SELECT queue, phase, `rank`, place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_run AS gone
    ON gone.queue = old.queue AND gone.phase = old.phase
    AND gone.`rank` = old.`rank` AND gone.place = old.place
