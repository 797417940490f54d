-- These segments of the log, of all tenants; for those published long enough ago also a queue that
-- has deliveries of them and was not deleted, if there is one (G1).
SELECT log.segment, log.tenant, log.published_at, log.entries,
    CASE WHEN log.published_at <= :before THEN (
        SELECT run.queue
        FROM penstock_run AS run FORCE INDEX (penstock_run_segment)
        JOIN penstock_queue AS queue ON queue.number = run.queue
        WHERE run.segment = log.segment
        LIMIT 1
    ) END
FROM penstock_log AS log FORCE INDEX (PRIMARY)
WHERE log.segment IN (:numbers)
ORDER BY log.segment
