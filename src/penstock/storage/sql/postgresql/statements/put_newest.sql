-- Set the newest entries of replaced messages.
INSERT INTO penstock_newest (message, tenant, entry)
SELECT * FROM unnest($1::bigint[], $2::integer[], $3::bigint[])
ON CONFLICT (message) DO UPDATE SET entry = EXCLUDED.entry
