-- When a run of these phases is next due or lapses: the first of each, by the index over until.
SELECT NULLIF(MIN((
    SELECT run.until
    FROM penstock_run AS run FORCE INDEX (penstock_run_until)
    WHERE run.queue = :queue AND run.phase = wanted.phase
    ORDER BY run.until
    LIMIT 1
)), 9223372036854775807)
FROM (
    SELECT 0 AS phase UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 11 UNION ALL SELECT 12 UNION ALL SELECT 13
) AS wanted
WHERE wanted.phase IN (:phases)
