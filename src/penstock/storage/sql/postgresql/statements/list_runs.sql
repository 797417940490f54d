-- Runs of one phase in the order of their positions, after a position and up to a rank.
SELECT queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
FROM penstock_run
WHERE queue = :queue AND phase = :phase AND (rank, place) > (:rank, :place) AND rank <= :last_rank
ORDER BY rank, place
LIMIT :most
