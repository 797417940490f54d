-- The first run of every rank in some phases, and all runs in flight, in one snapshot: a delivery
-- that changes its phase is seen exactly once (Q2).
SELECT run.queue, run.phase, run.`rank`, run.place, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.life
FROM (
    SELECT wanted.phase, lane.`rank`, (
        SELECT front.place
        FROM penstock_run AS front FORCE INDEX (PRIMARY)
        WHERE front.queue = :queue AND front.phase = wanted.phase AND front.`rank` = lane.`rank`
        ORDER BY front.place
        LIMIT 1
    ) AS place
    FROM (
        SELECT 0 AS phase UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
        UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 11 UNION ALL SELECT 12
        UNION ALL SELECT 13 UNION ALL SELECT 14
    ) AS wanted
    CROSS JOIN (
        SELECT 0 AS `rank` UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
        UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7
        UNION ALL SELECT 8 UNION ALL SELECT 9
    ) AS lane
    WHERE wanted.phase IN (:phases)
    LIMIT 1000
) AS first
STRAIGHT_JOIN penstock_run AS run FORCE INDEX (PRIMARY)
    ON run.queue = :queue AND run.phase = first.phase AND run.`rank` = first.`rank`
    AND run.place = first.place
UNION ALL
SELECT queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :in_flight
