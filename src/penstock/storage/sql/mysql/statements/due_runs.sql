-- Lock runs of one rank whose time has come; locked ones are skipped. due_places has found their
-- keys before.
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` = :rank AND place IN (:places)
    AND until <= :now
ORDER BY place
FOR UPDATE SKIP LOCKED
