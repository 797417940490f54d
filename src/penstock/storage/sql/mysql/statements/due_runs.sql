-- Runs that time acts on by now, the earliest of every phase first; those that somebody else has
-- locked are passed by, and no more is read than is given.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (penstock_run_until)
WHERE queue = :queue AND phase IN (:phases) AND until <= :now
ORDER BY phase, until
LIMIT :most
FOR UPDATE SKIP LOCKED
