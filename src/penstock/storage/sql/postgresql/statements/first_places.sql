-- The first position of a phase per rank, at or above the floor of the rank.
SELECT ranks.nth - 1, run.place
FROM unnest(:floors::bigint[]) WITH ORDINALITY AS ranks (floor, nth)
CROSS JOIN LATERAL (
    SELECT place
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = ranks.nth - 1 AND place >= ranks.floor
    ORDER BY place
    LIMIT 1
) AS run
