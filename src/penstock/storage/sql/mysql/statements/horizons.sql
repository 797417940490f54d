-- For every queue and phase the earliest until that has passed; for delayed failed deliveries (12),
-- whether there are any; as phase -1, when consumers missed their heartbeats.
SELECT tenant.name, tenant.version, queue.number, wanted.phase, (
    SELECT run.until
    FROM penstock_run AS run FORCE INDEX (penstock_run_until)
    WHERE run.queue = queue.number AND run.phase = wanted.phase
    ORDER BY run.until
    LIMIT 1
) AS earliest
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
CROSS JOIN (
    SELECT 0 AS phase UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 11 UNION ALL SELECT 12
    UNION ALL SELECT 13 UNION ALL SELECT 14
) AS wanted
HAVING earliest <= :now OR (phase = 12 AND earliest < 9223372036854775807)
UNION ALL
SELECT tenant.name, tenant.version, queue.number, -1, consumer.deadline
FROM penstock_consumer AS consumer
JOIN penstock_queue AS queue ON queue.number = consumer.queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
WHERE consumer.deadline <= :now
