-- Lock these ids of a topic, in order, and return their records (P4). One primary-key lookup per id:
-- a list would be compared with every id of the topic.
SELECT known.id, known.at, known.message, known.entry, known.reply, known.token
FROM (SELECT DISTINCT id FROM unnest(:ids::bytea[]) AS given (id) ORDER BY id) AS wanted
CROSS JOIN LATERAL (
    SELECT id, at, message, entry, reply, token
    FROM penstock_id
    WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id = wanted.id
    FOR UPDATE
) AS known
