-- The first place of a phase in every rank, not below a floor.
SELECT run.place
FROM generate_series(0, 9) AS wanted (rank)
CROSS JOIN LATERAL (
    SELECT place
    FROM penstock_run
    WHERE queue = :queue AND phase = :phase AND rank = wanted.rank AND place >= :floor
    ORDER BY place
    LIMIT 1
) AS run
