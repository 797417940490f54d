-- The number of deliveries of these queues in these phases.
SELECT queue, sum(delta)::bigint
FROM penstock_tally
WHERE queue = ANY(:queues) AND kind = ANY(:kinds)
GROUP BY queue
