-- Delayed failed deliveries of a queue after a position, in order.
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE queue = :queue AND phase = 12 AND (rank, place) > (:rank, :place)
ORDER BY rank, place
LIMIT :most
