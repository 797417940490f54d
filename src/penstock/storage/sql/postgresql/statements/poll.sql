-- The state of a queue by which a change is detected: its tenant's version, and its tally rows. The
-- newest row number alone would miss rows that are committed late (C5).
SELECT queue.number, tenant.version, COALESCE(MAX(tally.number), 0), COUNT(tally.number)
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
LEFT JOIN penstock_tally AS tally ON tally.queue = queue.number
WHERE queue.number = ANY(:queues)
GROUP BY queue.number, tenant.version
