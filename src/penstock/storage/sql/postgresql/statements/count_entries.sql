-- The number of entries in a tenant's log from an offset on. The row comparison makes sure that
-- the index over tenants and segments is used.
SELECT sum(CASE WHEN segment > :segment THEN entries ELSE greatest(entries - :index, 0) END)::bigint
FROM penstock_log
WHERE (tenant, segment) >= (:tenant, :segment) AND tenant <= :tenant
