-- The number of deliveries of these queues in these phases.
SELECT queue, CAST(SUM(delta) AS SIGNED)
FROM penstock_tally FORCE INDEX (PRIMARY)
WHERE queue IN (:queues) AND kind IN (:kinds)
GROUP BY queue
