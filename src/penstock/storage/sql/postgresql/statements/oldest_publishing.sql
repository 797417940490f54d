-- The lowest segment that an open publishing transaction began at (L2), and how many are about to
-- name theirs: see begin_publishing. All locks are read in one snapshot.
SELECT min(publishing.began_at), count(*) FILTER (WHERE publishing.began_at IS NULL)
FROM (
    SELECT min((classid::bigint & 65535) << 32 | objid::bigint)
        FILTER (WHERE classid::bigint >> 16 = 20563) AS began_at
    FROM pg_locks
    WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 IN (20563, 20564)
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    GROUP BY virtualtransaction
) AS publishing
