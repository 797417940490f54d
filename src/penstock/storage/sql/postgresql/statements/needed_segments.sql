-- The given segments that have deliveries in a queue (G1); deleted queues do not count.
SELECT wanted.segment
FROM unnest(:numbers::bigint[]) AS wanted (segment)
CROSS JOIN LATERAL (
    SELECT 1
    FROM penstock_run AS run
    JOIN penstock_queue AS queue ON queue.number = run.queue
    WHERE run.segment = wanted.segment
    LIMIT 1
) AS needed
