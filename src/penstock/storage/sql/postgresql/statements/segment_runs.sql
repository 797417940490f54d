-- The runs of some segments in some queues.
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE segment = ANY(:segments) AND queue = ANY(:queues)
