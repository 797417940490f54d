-- The runs of some segments in some queues. Only the index over segments can serve it: by the
-- primary key, all of a queue would be read.
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE segment = ANY(:segments) AND queue + 0 = ANY(:queues)
