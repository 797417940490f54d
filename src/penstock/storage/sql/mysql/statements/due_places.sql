-- The keys of runs whose time has come, the earliest of every phase first: see due_runs.
SELECT queue, phase, `rank`, place
FROM penstock_run FORCE INDEX (penstock_run_until)
WHERE queue = :queue AND phase IN (:phases) AND until <= :now
ORDER BY phase, until
LIMIT :most
