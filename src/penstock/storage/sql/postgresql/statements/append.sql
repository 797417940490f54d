-- Append segments to the log, in order (L1).
INSERT INTO penstock_log (tenant, published_at, entries, heads, payloads)
SELECT tenant, published_at, entries, heads, payloads
FROM unnest($1::integer[], $2::bigint[], $3::integer[], $4::bytea[], $5::bytea[])
    WITH ORDINALITY AS new (tenant, published_at, entries, heads, payloads, ordinal)
ORDER BY ordinal
RETURNING segment
