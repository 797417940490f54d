-- The same as write, for a publish that is its own transaction. The lock comes before the function,
-- which needs the tenant: see begin_publishing.
SELECT change.catalog, change.written, change.numbers
FROM (
    SELECT
        $1::integer AS tenant,
        pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid())
    OFFSET 0
) AS begun
CROSS JOIN LATERAL penstock_write(
    begun.tenant, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
    $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36
) AS change
