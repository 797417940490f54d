-- Those of these segments that are still in the log, held there until this transaction ends: see
-- retention. Whoever adds deliveries of old entries calls it first, with the segments of the
-- messages and of their newest entries, and adds only what still has its newest entry (G1).
SELECT segment FROM penstock_log FORCE INDEX (PRIMARY)
WHERE segment IN (:numbers)
ORDER BY segment
LOCK IN SHARE MODE
