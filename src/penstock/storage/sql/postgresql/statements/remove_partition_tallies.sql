-- Delete locked changes that the same commit adds to their partitions (Q2). One primary-key lookup
-- per row, regardless of how many there are.
DELETE FROM penstock_partition_tally
WHERE ctid = ANY(ARRAY(
    SELECT tally.ctid
    FROM unnest(:numbers::bigint[]) AS old (number)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM penstock_partition_tally
        WHERE queue = :queue AND number = old.number
        LIMIT 1
    ) AS tally
))
