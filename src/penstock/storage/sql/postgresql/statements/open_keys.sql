-- Keys that stand for nothing yet. If one does after all, the transaction is made again.
INSERT INTO penstock_key (tenant, topic, key, message)
SELECT * FROM unnest($1::integer[], $2::text[], $3::bytea[], $4::bigint[])
