-- The counters of a queue, by kind (Q2).
SELECT kind, CAST(SUM(delta) AS SIGNED)
FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue = :queue
GROUP BY kind
