-- Ids that were written down for nothing: their batch was refused. Each is found by its primary
-- key, however many others the topic has.
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
