-- Insert new keys. If one exists by now, the transaction is retried.
INSERT INTO penstock_key (tenant, topic, key, message)
SELECT * FROM unnest($1::integer[], $2::text[], $3::bytea[], $4::bigint[])
