-- Append segments, delete and write runs, count, and return the version of the catalog (S3, Q2, R1);
-- the function is in the migrations.
SELECT catalog, written, numbers FROM penstock_write(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    $22, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36
)
