-- Write the messages and replies of ids (P4).
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token, message, entry, reply)
SELECT * FROM unnest(
    $1::integer[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[]
)
ON CONFLICT (tenant, kind, topic, id) DO UPDATE SET
    at = EXCLUDED.at,
    until = EXCLUDED.until,
    token = EXCLUDED.token,
    message = EXCLUDED.message,
    entry = EXCLUDED.entry,
    reply = EXCLUDED.reply
