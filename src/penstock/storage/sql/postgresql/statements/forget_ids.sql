-- Delete ids whose batch was refused. One primary-key lookup per id, regardless of how many ids the
-- topic has.
DELETE FROM penstock_id
WHERE ctid = ANY(ARRAY(
    SELECT known.ctid
    FROM unnest(:ids::bytea[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT ctid
        FROM penstock_id
        WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id = given.id
        FOR UPDATE
    ) AS known
))
