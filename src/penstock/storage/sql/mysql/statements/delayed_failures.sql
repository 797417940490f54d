-- Delayed failed deliveries of a queue after a position, in order.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = 12 AND (`rank` > :rank OR (`rank` = :rank AND place > :place))
ORDER BY `rank`, place
LIMIT :most
