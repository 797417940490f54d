-- Append segments, insert their fresh runs, and count those (P1, R1); the function is in the
-- migrations. The lock comes before the function, which needs the tenant: see begin_publishing.
SELECT penstock_publish(
    begun.tenant, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14
) AS numbers
FROM (
    SELECT
        $1::integer AS tenant,
        pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid())
    OFFSET 0
) AS begun
