-- Lock the first runs of a phase, in claim order, skipping locked ones (C1, C4).
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase
ORDER BY `rank`, place
LIMIT :most
FOR UPDATE SKIP LOCKED
