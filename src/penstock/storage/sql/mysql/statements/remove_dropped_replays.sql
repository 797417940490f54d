-- Remove some replay ids of a deleted queue. The inner SELECT skips locked rows, which a DELETE
-- cannot, and must come first in the join.
DELETE gone
FROM (
    SELECT queue, dead, replay_id, message FROM penstock_replayed FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_replayed AS gone
    ON gone.queue = old.queue AND gone.dead = old.dead
    AND gone.replay_id = old.replay_id AND gone.message = old.message
