-- For every queue and phase the earliest until that has passed; for delayed failed deliveries (12),
-- whether there are any; as phase -1, when consumers missed their heartbeats.
SELECT tenant.name, tenant.version, queue.number, wanted.phase, first.until
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (11), (12), (13), (14)) AS wanted (phase)
CROSS JOIN LATERAL (
    SELECT run.until
    FROM penstock_run AS run
    WHERE run.queue = queue.number AND run.phase = wanted.phase AND run.until IS NOT NULL
    ORDER BY run.until
    LIMIT 1
) AS first
WHERE first.until <= :now OR wanted.phase = 12
UNION ALL
SELECT tenant.name, tenant.version, queue.number, -1, consumer.deadline
FROM penstock_consumer AS consumer
JOIN penstock_queue AS queue ON queue.number = consumer.queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
WHERE consumer.deadline <= :now
