-- How many entries a tenant's log has from an offset on. Rows are compared as a whole so that only
-- the index over tenants and segments can serve it.
SELECT sum(CASE WHEN segment > :segment THEN entries ELSE greatest(entries - :index, 0) END)::bigint
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :segment) AND tenant <= :tenant
