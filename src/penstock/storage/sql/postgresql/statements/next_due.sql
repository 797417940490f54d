-- When a run of these phases is next due or lapses: the first of each, by the index over until.
SELECT min(first.until)
FROM unnest(:phases::smallint[]) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT until
    FROM penstock_run
    WHERE queue = :queue AND phase = wanted.phase AND until IS NOT NULL
    ORDER BY until
    LIMIT 1
) AS first
