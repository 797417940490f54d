-- Some of the owners of a queue that was deleted. The inner select passes by what is locked,
-- which a DELETE cannot, and has to come first in the join.
DELETE gone
FROM (
    SELECT queue, partition_key FROM penstock_owner FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_owner AS gone
    ON gone.queue = old.queue AND gone.partition_key = old.partition_key
