-- The first deadline of a consumer of an ordered queue that has live deliveries (O1, C5).
SELECT min(consumer.deadline)
FROM penstock_consumer AS consumer
WHERE consumer.queue = :queue AND EXISTS (
    SELECT 1
    FROM unnest(:phases::smallint[]) AS wanted (phase)
    CROSS JOIN LATERAL (
        SELECT place
        FROM penstock_run
        WHERE queue = :queue AND phase = wanted.phase
        ORDER BY rank, place
        LIMIT 1
    ) AS live
)
