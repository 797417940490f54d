-- These messages that the replay id has already moved.
SELECT message
FROM penstock_replayed
WHERE queue = :queue AND dead = :dead AND replay_id = :replay_id AND message IN (:messages)
