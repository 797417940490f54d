-- Segments of a tenant's log without their payloads (T1).
SELECT segment, published_at, heads
FROM penstock_log
WHERE tenant = :tenant AND segment = ANY(:numbers)
