-- The first run of a phase, after waiting for its lock (C5).
SELECT place
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase
ORDER BY `rank`, place
LIMIT 1
FOR UPDATE
