-- Lock the oldest rows of one counter of a queue, skipping rows locked by other servers (Q2).
SELECT number, delta FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue = :queue AND kind = :kind
ORDER BY number
LIMIT :most
FOR UPDATE SKIP LOCKED
