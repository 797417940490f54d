-- Whether a phase has a run, locked or not (C5).
SELECT place
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase
ORDER BY `rank`, place
LIMIT 1
