-- Segments that may be about to go, locked. Those that somebody adds deliveries of, or that
-- another server is about to remove, are passed by (G1).
SELECT segment, tenant, published_at, entries, heads
FROM penstock_log FORCE INDEX (PRIMARY)
WHERE segment IN (:numbers)
ORDER BY segment
FOR UPDATE SKIP LOCKED
