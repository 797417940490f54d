-- Segments of a tenant's log, payloads and all (T1).
SELECT segment, published_at, heads, payloads
FROM penstock_log
WHERE tenant = :tenant AND segment = ANY(:numbers)
