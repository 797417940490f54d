-- Lock runs at these positions of one rank, in order.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` = :rank AND place IN (:places)
ORDER BY place
FOR UPDATE
