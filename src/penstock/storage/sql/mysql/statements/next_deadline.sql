-- The first deadline of a consumer of an ordered queue that has live deliveries (O1, C5).
SELECT MIN(deadline)
FROM penstock_consumer
WHERE queue = :queue AND EXISTS (
    SELECT 1
    FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE penstock_run.queue = :queue AND phase IN (:phases)
)
