-- The first runs of each phase, in claim order, passing by what is locked (C1, C4). Where there is a
-- floor every rank is begun at it; no more is read and locked than is given.
SELECT first.*
FROM unnest(:phases::smallint[], :floors::bigint[]) AS wanted (phase, floor)
CROSS JOIN LATERAL (
    SELECT run.*
    FROM generate_series(0, 9) AS ranks (rank)
    CROSS JOIN LATERAL (
        SELECT
            queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
        FROM penstock_run
        WHERE queue = :queue AND phase = wanted.phase AND rank = ranks.rank
            AND place >= wanted.floor
        ORDER BY place
        LIMIT :most
        FOR UPDATE SKIP LOCKED
    ) AS run
    WHERE wanted.floor > 0
    LIMIT :most
) AS first
UNION ALL
SELECT first.*
FROM unnest(:phases::smallint[], :floors::bigint[]) AS wanted (phase, floor)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase AND wanted.floor = 0
    ORDER BY rank, place
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS first
