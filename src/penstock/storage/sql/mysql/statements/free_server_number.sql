-- The server number whose lease ended first, if any has ended.
SELECT number FROM penstock_server
WHERE until <= :now
ORDER BY until
LIMIT 1
FOR UPDATE SKIP LOCKED
