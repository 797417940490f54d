-- Segments, from one on, of which an ordered queue has something to deliver that is in no partition.
-- Only the index over segments can serve it: by the primary key, all of a queue would be read.
SELECT DISTINCT segment
FROM penstock_run
WHERE segment >= :first AND queue + 0 = :queue AND phase + 0 BETWEEN 0 AND 3
    AND partition_key IS NULL
ORDER BY segment
LIMIT :most
