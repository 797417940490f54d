-- Lock these keys of a topic, in order, and return their messages. One primary-key lookup per key:
-- a list would be compared with every key of the topic.
SELECT known.key, known.message
FROM (SELECT DISTINCT key FROM unnest(:keys::bytea[]) AS given (key) ORDER BY key) AS wanted
CROSS JOIN LATERAL (
    SELECT key, message
    FROM penstock_key
    WHERE tenant = :tenant AND topic = :topic AND key = wanted.key
    FOR UPDATE
) AS known
