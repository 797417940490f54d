-- The counters of a queue, by kind (Q2).
SELECT kind, sum(delta)::bigint
FROM penstock_tally
WHERE queue = :queue
GROUP BY kind
