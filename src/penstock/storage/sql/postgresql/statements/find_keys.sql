-- What these keys of a topic stand for: one look into the primary key each, however many others
-- the topic has.
SELECT known.key, known.message
FROM unnest(:keys::bytea[]) AS given (key)
CROSS JOIN LATERAL (
    SELECT key, message
    FROM penstock_key
    WHERE tenant = :tenant AND topic = :topic AND key = given.key
    LIMIT 1
) AS known
