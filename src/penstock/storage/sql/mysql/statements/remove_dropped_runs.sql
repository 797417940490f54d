-- Some of the deliveries of a queue that was deleted. The inner select passes by what is locked,
-- which a DELETE cannot, and has to come first in the join.
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
