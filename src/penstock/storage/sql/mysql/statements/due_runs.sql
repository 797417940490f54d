-- Runs of one rank that time acts on by now; those that somebody else has locked are passed by.
-- Where to look was read before, by due_places.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` = :rank AND place IN (:places)
    AND until <= :now
ORDER BY place
FOR UPDATE SKIP LOCKED
