-- What the queues have of these segments, locked in the order of the primary key. Only the index
-- over segments can serve it: by the primary key, all of a queue would be read.
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE segment = ANY(:segments) AND queue + 0 = ANY(:queues) AND phase + 0 = ANY(:phases)
ORDER BY queue, phase, rank, place
FOR UPDATE
