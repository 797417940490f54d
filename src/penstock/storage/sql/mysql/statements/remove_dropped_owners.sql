-- Remove some owners of a deleted queue. The inner SELECT skips locked rows, which a DELETE cannot,
-- and must come first in the join.
DELETE gone
FROM (
    SELECT queue, partition_key FROM penstock_owner FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_owner AS gone
    ON gone.queue = old.queue AND gone.partition_key = old.partition_key
