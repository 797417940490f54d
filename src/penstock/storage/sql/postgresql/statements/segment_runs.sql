-- The runs of some segments in some queues. The index over segments must be used: by the primary
-- key, the whole queue would be read.
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE segment = ANY(:segments) AND queue + 0 = ANY(:queues)
