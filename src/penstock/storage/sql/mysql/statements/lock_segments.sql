-- Lock segments that may be removed. Those to which a transaction adds deliveries, or that another
-- server is about to remove, are skipped (G1).
SELECT segment, tenant, published_at, entries, heads
FROM penstock_log FORCE INDEX (PRIMARY)
WHERE segment IN (:numbers)
ORDER BY segment
FOR UPDATE SKIP LOCKED
