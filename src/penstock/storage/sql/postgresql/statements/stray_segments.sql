-- Segments from a number on in which an ordered queue has live runs without a partition. The index
-- over segments must be used: by the primary key, the whole queue would be read.
SELECT DISTINCT segment
FROM penstock_run
WHERE segment >= :first AND queue + 0 = :queue AND phase + 0 BETWEEN 0 AND 3
    AND partition_key IS NULL
ORDER BY segment
LIMIT :most
