-- Lock runs at these positions of one rank, in order. One primary-key lookup per position: a list
-- would be compared with every run of the phase.
SELECT run.queue, run.phase, run.rank, run.place, run.segment, run.size, run.until,
    run.partition_key, run.consumer, run.members, run.life
FROM (
    SELECT DISTINCT place FROM unnest(:places::bigint[]) AS given (place) ORDER BY place
) AS wanted
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = :rank AND place = wanted.place
    FOR UPDATE
) AS run
