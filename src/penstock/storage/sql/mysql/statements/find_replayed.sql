-- Which of these messages a replay id has moved already.
SELECT message
FROM penstock_replayed
WHERE queue = :queue AND dead = :dead AND replay_id = :replay_id AND message IN (:messages)
