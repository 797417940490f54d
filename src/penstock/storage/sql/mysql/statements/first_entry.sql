-- The first segment of the tenant's log at or after a segment and a time.
SELECT segment FROM penstock_log FORCE INDEX (penstock_log_tenant)
WHERE tenant = :tenant AND segment >= :segment AND published_at >= :published_at
ORDER BY segment LIMIT 1
