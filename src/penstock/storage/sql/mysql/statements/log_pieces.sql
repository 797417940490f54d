-- The first segments of at most :most pieces of a tenant's log with about :entries entries each.
SELECT MIN(segment)
FROM (
    SELECT segment, (SUM(entries) OVER (ORDER BY segment) - entries)
        DIV GREATEST(:entries, SUM(entries) OVER () DIV :most + 1) AS piece
    FROM penstock_log FORCE INDEX (penstock_log_tenant)
    WHERE tenant = :tenant AND segment >= :first AND segment <= :last
) AS counted
GROUP BY piece
ORDER BY piece
