-- Lock the runs of these segments in these queues, segment by segment.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (penstock_run_segment)
WHERE segment IN (:segments) AND queue IN (:queues) AND phase IN (:phases)
ORDER BY queue, phase, `rank`, place
FOR UPDATE
