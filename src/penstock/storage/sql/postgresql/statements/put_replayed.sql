-- Record the messages that a replay id has moved. A replay holds the queue, so there is no conflict.
INSERT INTO penstock_replayed (queue, dead, replay_id, message)
SELECT * FROM unnest($1::integer[], $2::boolean[], $3::text[], $4::bigint[])
