-- Remove some changes by partition of a deleted queue; see ``remove_dropped_tallies``.
DELETE gone
FROM (
    SELECT queue, number FROM penstock_partition_tally FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_partition_tally AS gone
    ON gone.queue = old.queue AND gone.number = old.number
