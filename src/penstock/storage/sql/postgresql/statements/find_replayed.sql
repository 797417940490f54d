-- These messages that the replay id has already moved. One primary-key lookup per message,
-- regardless of how many it has moved.
SELECT moved.message
FROM unnest(:messages::bigint[]) AS given (message)
CROSS JOIN LATERAL (
    SELECT message
    FROM penstock_replayed
    WHERE queue = :queue AND dead = :dead AND replay_id = :replay_id AND message = given.message
    LIMIT 1
) AS moved
