-- Set the messages of existing keys.
INSERT INTO penstock_key (tenant, topic, key, message)
SELECT * FROM unnest($1::integer[], $2::text[], $3::bytea[], $4::bigint[])
ON CONFLICT (tenant, topic, key) DO UPDATE SET message = EXCLUDED.message
