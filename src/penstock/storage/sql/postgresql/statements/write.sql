-- Append segments, delete runs, put runs, count, and say which version the catalog has (S3, Q2, R1);
-- the function is in the migrations. If it publishes, the lock comes before the function, which needs
-- to know whether it does: see begin_publishing.
SELECT change.catalog, change.written, change.numbers
FROM (
    SELECT CASE WHEN $2::boolean THEN
        pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid()) IS NOT NULL
    ELSE false END AS publishes
    OFFSET 0
) AS begun
CROSS JOIN LATERAL penstock_write(
    $1, begun.publishes, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19,
    $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36
) AS change
