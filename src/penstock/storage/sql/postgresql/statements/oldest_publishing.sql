-- The lowest segment that an open publishing transaction began at (L2): see begin_publishing.
SELECT min((classid::bigint & 65535) << 32 | objid::bigint)
FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND classid::bigint >> 16 = 20563
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
