-- These queues that have more than this many unconsolidated changes by partition.
SELECT used.queue
FROM unnest(:queues::integer[]) AS used (queue)
CROSS JOIN LATERAL (
    SELECT tally.number
    FROM penstock_partition_tally AS tally
    WHERE tally.queue = used.queue
    ORDER BY tally.number
    LIMIT 1 OFFSET :most
) AS many
