-- The number of a server whose lease has ended, the one that ended first.
SELECT number FROM penstock_server
WHERE until <= :now
ORDER BY until
LIMIT 1
FOR UPDATE SKIP LOCKED
