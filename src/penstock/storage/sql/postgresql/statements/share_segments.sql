-- Those of these segments that are still in the log, held there until this transaction ends (G1):
-- see retention.
SELECT segment FROM penstock_log
WHERE segment = ANY(:numbers)
ORDER BY segment
FOR SHARE
