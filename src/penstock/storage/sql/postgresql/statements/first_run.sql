-- Whether a phase has a run, locked or not (C5), at or above the floors of the ranks.
SELECT run.place
FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
CROSS JOIN LATERAL (
    SELECT place
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = ranks.nth - 1 AND place >= ranks.floor
    ORDER BY place
    LIMIT 1
) AS run
LIMIT 1
