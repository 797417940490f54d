-- Lock the first runs of each phase, in claim order, skipping locked ones (C1, C4). With floors,
-- every rank of fresh runs (0) starts at its own; no more rows are read and locked than returned.
SELECT first.*
FROM (
    SELECT run.*
    FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
    CROSS JOIN LATERAL (
        SELECT
            queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
        FROM penstock_run
        WHERE queue = :queue AND phase = 0 AND rank = ranks.nth - 1 AND place >= ranks.floor
        ORDER BY place
        LIMIT :most
        FOR UPDATE SKIP LOCKED
    ) AS run
    LIMIT :most
) AS first
UNION ALL
SELECT first.*
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase
        AND (wanted.phase > 0 OR cardinality(:floors::bigint[]) = 0)
    ORDER BY rank, place
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS first
