-- How many entries a tenant's log has from an offset on.
SELECT sum(CASE WHEN segment > :segment THEN entries ELSE greatest(entries - :index, 0) END)::bigint
FROM penstock_log
WHERE tenant = :tenant AND segment >= :segment
