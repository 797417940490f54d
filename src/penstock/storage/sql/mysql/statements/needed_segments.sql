-- Those of these segments that queues have deliveries of (G1); deleted queues have none.
SELECT DISTINCT run.segment
FROM penstock_run AS run FORCE INDEX (penstock_run_segment)
JOIN penstock_queue AS queue ON queue.number = run.queue
WHERE run.segment IN (:numbers)
