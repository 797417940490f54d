-- Those of these segments that queues have deliveries of (G1); deleted queues have none.
SELECT wanted.segment
FROM unnest(:numbers::bigint[]) AS wanted (segment)
CROSS JOIN LATERAL (
    SELECT 1
    FROM penstock_run AS run
    JOIN penstock_queue AS queue ON queue.number = run.queue
    WHERE run.segment = wanted.segment
    LIMIT 1
) AS needed
