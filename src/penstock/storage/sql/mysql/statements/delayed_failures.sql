-- Failed deliveries of a queue that are delayed, from a place on, in the order of their places.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = 12 AND (`rank` > :rank OR (`rank` = :rank AND place > :place))
ORDER BY `rank`, place
LIMIT :most
