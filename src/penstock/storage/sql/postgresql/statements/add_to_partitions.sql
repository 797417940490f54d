-- Changes that were added up are part of how much their partitions have (Q2).
INSERT INTO penstock_partition AS added (queue, partition_key, unsettled)
SELECT * FROM unnest($1::integer[], $2::bytea[], $3::bigint[])
ON CONFLICT (queue, partition_key) DO UPDATE SET unsettled = added.unsettled + excluded.unsettled
