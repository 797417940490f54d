-- Append segments, put the runs of them, which are fresh, and count those (P1, R1); the function is in
-- the migrations.
SELECT penstock_publish(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14
) AS numbers
