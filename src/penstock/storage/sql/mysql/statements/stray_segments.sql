-- Segments, from one on, of which an ordered queue has something to deliver that is in no partition.
SELECT DISTINCT segment
FROM penstock_run FORCE INDEX (penstock_run_segment)
WHERE segment >= :first AND queue = :queue AND phase BETWEEN 0 AND 3 AND partition_key IS NULL
ORDER BY segment
LIMIT :most
