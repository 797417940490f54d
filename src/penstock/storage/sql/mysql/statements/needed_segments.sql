-- The given segments that have deliveries in a queue (G1); deleted queues do not count.
SELECT DISTINCT run.segment
FROM penstock_run AS run FORCE INDEX (penstock_run_segment)
JOIN penstock_queue AS queue ON queue.number = run.queue
WHERE run.segment IN (:numbers)
