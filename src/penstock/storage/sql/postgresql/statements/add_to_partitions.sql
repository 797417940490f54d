-- Add consolidated changes to the counts of their partitions (Q2).
INSERT INTO penstock_partition AS added (queue, partition_key, unsettled)
SELECT * FROM unnest($1::integer[], $2::bytea[], $3::bigint[])
ON CONFLICT (queue, partition_key) DO UPDATE SET unsettled = added.unsettled + excluded.unsettled
