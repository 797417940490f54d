-- The runs of some segments in some queues.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (penstock_run_segment)
WHERE segment IN (:segments) AND queue IN (:queues)
