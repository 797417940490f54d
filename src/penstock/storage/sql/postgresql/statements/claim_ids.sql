-- Insert ids that do not exist (P4). A concurrent insert of the same id waits for the first.
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token)
SELECT * FROM unnest(
    $1::integer[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[],
    $7::bigint[]
)
ON CONFLICT (tenant, kind, topic, id) DO NOTHING
