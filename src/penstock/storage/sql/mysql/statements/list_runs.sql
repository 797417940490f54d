-- Runs of one phase in the order of their positions, after a position and up to a rank.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` <= :last_rank
    AND (`rank` > :rank OR (`rank` = :rank AND place > :place))
ORDER BY `rank`, place
LIMIT :most
