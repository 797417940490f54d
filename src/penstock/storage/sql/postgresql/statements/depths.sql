-- How many deliveries these queues have in these phases.
SELECT queue, sum(delta)::bigint
FROM penstock_tally
WHERE queue = ANY(:queues) AND kind = ANY(:kinds)
GROUP BY queue
