-- Delete locked rows that the same commit replaces by their sum (Q2). One primary-key lookup per row,
-- regardless of how many there are.
DELETE FROM penstock_tally
WHERE ctid = ANY(ARRAY(
    SELECT tally.ctid
    FROM unnest(:numbers::bigint[]) AS old (number)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM penstock_tally
        WHERE queue = :queue AND kind = :kind AND number = old.number
        LIMIT 1
    ) AS tally
))
