-- Set the owners of free partitions, each in a new epoch (O1).
INSERT INTO penstock_owner (queue, partition_key, consumer, epoch)
SELECT * FROM unnest($1::integer[], $2::bytea[], $3::text[], $4::bigint[])
