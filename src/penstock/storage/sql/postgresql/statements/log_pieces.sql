-- The first segments of pieces of a tenant's log, each of about as many entries, and at most so many
-- of them. Rows are compared as a whole so that only the index over tenants and segments can serve it.
SELECT min(segment)
FROM (
    SELECT segment, (sum(entries) OVER (ORDER BY segment) - entries)
        / greatest(:entries, sum(entries) OVER () / :most + 1) AS piece
    FROM penstock_log
    WHERE (tenant, segment) >= (:tenant, :first) AND (tenant, segment) <= (:tenant, :last)
) AS counted
GROUP BY piece
ORDER BY piece
