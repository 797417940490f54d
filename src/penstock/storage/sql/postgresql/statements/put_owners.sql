-- Partitions that were nobody's have an owner, each in an epoch of its own (O1).
INSERT INTO penstock_owner (queue, partition_key, consumer, epoch)
SELECT * FROM unnest($1::integer[], $2::bytea[], $3::text[], $4::bigint[])
