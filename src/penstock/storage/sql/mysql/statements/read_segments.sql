-- Segments of a tenant's log with their payloads (T1).
SELECT segment, published_at, heads, payloads
FROM penstock_log FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND segment IN (:numbers)
