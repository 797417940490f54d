-- Lock the runs of these segments in these queues, in the order of the primary key. The index over
-- segments must be used: by the primary key, the whole queue would be read.
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE segment = ANY(:segments) AND queue + 0 = ANY(:queues) AND phase + 0 = ANY(:phases)
ORDER BY queue, phase, rank, place
FOR UPDATE
