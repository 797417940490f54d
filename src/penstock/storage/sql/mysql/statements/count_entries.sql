-- The number of entries in a tenant's log from an offset on.
SELECT CAST(
    SUM(CASE WHEN segment > :segment THEN entries ELSE GREATEST(entries - :index, 0) END) AS SIGNED
)
FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :segment
