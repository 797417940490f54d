-- The bounds that retention must respect: how far the log is archived (A1), and the cursor of the
-- queue that is furthest behind (G1).
SELECT tenant.number, tenant.archived, (
    SELECT MIN(queue.`cursor`)
    FROM penstock_queue AS queue
    WHERE queue.tenant = tenant.number AND queue.`cursor` IS NOT NULL
)
FROM penstock_tenant AS tenant
WHERE tenant.number IN (:tenants)
