-- The first runs of a phase, in claim order, passing by what is locked (C1, C4). Every rank is
-- begun at the floor of the phase.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    AND place >= :floor
ORDER BY `rank`, place
LIMIT :most
FOR UPDATE SKIP LOCKED
