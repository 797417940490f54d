-- The oldest rows of one number of a queue, locked; another server's share is passed by (Q2).
SELECT number, delta FROM penstock_tally
WHERE queue = :queue AND kind = :kind
ORDER BY number
LIMIT :most
FOR UPDATE SKIP LOCKED
