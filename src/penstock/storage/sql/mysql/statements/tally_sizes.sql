-- The counters of these queues that have more rows than this.
SELECT queue, kind
FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue IN (:queues)
GROUP BY queue, kind
HAVING COUNT(*) > :most
