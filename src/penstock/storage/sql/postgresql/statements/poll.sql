-- What a queue has come to, by which a change is noticed: its tenant's version, and its tally,
-- of which the newest number alone would miss what is committed late (C5).
SELECT queue.number, tenant.version, COALESCE(MAX(tally.number), 0), COUNT(tally.number)
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
LEFT JOIN penstock_tally AS tally ON tally.queue = queue.number
WHERE queue.number = ANY(:queues)
GROUP BY queue.number, tenant.version
