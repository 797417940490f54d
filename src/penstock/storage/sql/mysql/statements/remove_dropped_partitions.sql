-- Remove some partition counts of a deleted queue; see ``remove_dropped_tallies``.
DELETE gone
FROM (
    SELECT queue, partition_key FROM penstock_partition FORCE INDEX (PRIMARY)
    WHERE queue = :queue
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_partition AS gone
    ON gone.queue = old.queue AND gone.partition_key = old.partition_key
