-- For every queue the newest rows of the counters that change whenever it is used: available (1), in
-- flight (3), done (4), dead letters in flight (13), news (99).
SELECT tenant.name, queue.number,
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 1
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 3
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 4
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 13
        ORDER BY tally.number DESC LIMIT 1
    ),
    (
        SELECT tally.number FROM penstock_tally AS tally FORCE INDEX (PRIMARY)
        WHERE tally.queue = queue.number AND tally.kind = 99
        ORDER BY tally.number DESC LIMIT 1
    )
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
