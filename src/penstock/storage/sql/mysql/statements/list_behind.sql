-- Queues that must be caught up (R1) or mended, by the names of tenant and queue.
SELECT penstock_tenant.name, penstock_queue.name
FROM penstock_queue
JOIN penstock_tenant ON penstock_tenant.number = penstock_queue.tenant
WHERE penstock_queue.`cursor` IS NOT NULL OR penstock_queue.joining IS NOT NULL
ORDER BY penstock_tenant.name, penstock_queue.name
