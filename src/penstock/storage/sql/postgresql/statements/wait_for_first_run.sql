-- The first run of a phase, not below the floors of the ranks, once whoever has locked it is done
-- (C5).
SELECT run.place
FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
CROSS JOIN LATERAL (
    SELECT place
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = ranks.nth - 1 AND place >= ranks.floor
    ORDER BY place
    LIMIT 1
    FOR UPDATE
) AS run
LIMIT 1
