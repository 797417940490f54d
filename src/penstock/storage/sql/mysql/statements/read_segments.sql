-- Segments of a tenant's log, payloads and all (T1).
SELECT segment, published_at, heads, payloads
FROM penstock_log FORCE INDEX (PRIMARY)
WHERE tenant = :tenant AND segment IN (:numbers)
