-- The first run of every rank in some phases, and all runs in flight, in one snapshot: a delivery
-- that changes its phase is seen exactly once (Q2).
SELECT run.queue, run.phase, run.rank, run.place, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.life
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN generate_series(0, 9) AS lane (rank)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase AND rank = lane.rank
    ORDER BY place
    LIMIT 1
) AS run
UNION ALL
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE queue = :queue AND phase = :in_flight
