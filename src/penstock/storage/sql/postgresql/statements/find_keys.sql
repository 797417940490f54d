-- The messages of these keys of a topic. One primary-key lookup per key, regardless of how many
-- keys the topic has.
SELECT known.key, known.message
FROM unnest(:keys::bytea[]) AS given (key)
CROSS JOIN LATERAL (
    SELECT key, message
    FROM penstock_key
    WHERE tenant = :tenant AND topic = :topic AND key = given.key
    LIMIT 1
) AS known
