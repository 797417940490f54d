-- The first run of a phase, once whoever has locked it is done (C5).
SELECT place
FROM penstock_run
WHERE queue = :queue AND phase = :phase
ORDER BY rank, place
LIMIT 1
FOR UPDATE
