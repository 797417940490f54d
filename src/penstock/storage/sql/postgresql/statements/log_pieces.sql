-- The first segments of at most :most pieces of a tenant's log with about :entries entries each. The
-- row comparison makes sure that the index over tenants and segments is used.
SELECT min(segment)
FROM (
    SELECT segment, (sum(entries) OVER (ORDER BY segment) - entries)
        / greatest(:entries, sum(entries) OVER () / :most + 1) AS piece
    FROM penstock_log
    WHERE (tenant, segment) >= (:tenant, :first) AND (tenant, segment) <= (:tenant, :last)
) AS counted
GROUP BY piece
ORDER BY piece
