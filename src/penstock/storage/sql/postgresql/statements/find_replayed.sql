-- Which of these messages a replay id has moved already: one look into the primary key each,
-- however many others it has moved.
SELECT moved.message
FROM unnest(:messages::bigint[]) AS given (message)
CROSS JOIN LATERAL (
    SELECT message
    FROM penstock_replayed
    WHERE queue = :queue AND dead = :dead AND replay_id = :replay_id AND message = given.message
    LIMIT 1
) AS moved
