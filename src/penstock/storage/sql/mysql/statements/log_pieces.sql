-- The first segments of pieces of a tenant's log, each of about as many entries, and at most so many
-- of them.
SELECT MIN(segment)
FROM (
    SELECT segment, (SUM(entries) OVER (ORDER BY segment) - entries)
        DIV GREATEST(:entries, SUM(entries) OVER () DIV :most + 1) AS piece
    FROM penstock_log FORCE INDEX (penstock_log_tenant)
    WHERE tenant = :tenant AND segment >= :first AND segment <= :last
) AS counted
GROUP BY piece
ORDER BY piece
