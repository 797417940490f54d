-- Lock runs whose time has come, the earliest of every phase first. Locked runs are skipped, and
-- no more rows are read than returned.
SELECT due.queue, due.phase, due.rank, due.place, due.segment, due.size, due.until,
    due.partition_key, due.consumer, due.members, due.life
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase AND until <= :now
    ORDER BY until
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS due
LIMIT :most
