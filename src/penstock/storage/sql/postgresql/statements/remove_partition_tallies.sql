-- Changes that are added up in the same commit (Q2). They are locked; each is found by its primary
-- key, however many others there are.
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
