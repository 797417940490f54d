-- Segments from a number on in which an ordered queue has live runs without a partition.
SELECT DISTINCT segment
FROM penstock_run FORCE INDEX (penstock_run_segment)
WHERE segment >= :first AND queue = :queue AND phase BETWEEN 0 AND 3 AND partition_key IS NULL
ORDER BY segment
LIMIT :most
