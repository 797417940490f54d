-- The counters of these queues that have more rows than this; no more rows than that are read.
SELECT used.queue, wanted.kind
FROM unnest(:queues::integer[]) AS used (queue)
CROSS JOIN (
    VALUES (1), (2), (3), (4), (5), (11), (12), (13), (14), (99),
        (100), (101), (102), (103), (110), (111), (112), (113)
) AS wanted (kind)
CROSS JOIN LATERAL (
    SELECT tally.number
    FROM penstock_tally AS tally
    WHERE tally.queue = used.queue AND tally.kind = wanted.kind
    ORDER BY tally.number
    LIMIT 1 OFFSET :most
) AS many
