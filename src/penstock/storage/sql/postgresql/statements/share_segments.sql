-- Lock these segments that are still in the log, so that they stay until this transaction ends (G1):
-- see retention.
SELECT segment FROM penstock_log
WHERE segment = ANY(:numbers)
ORDER BY segment
FOR SHARE
