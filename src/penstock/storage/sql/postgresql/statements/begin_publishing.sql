-- Hold a shared lock that names the last segment given out, until the transaction ends (L2).
-- What this transaction appends is above it; readers stay below while the lock is there.
-- The first lock says that the transaction is about to name a segment: readers wait for the second,
-- so that no reader passes a number which is named after it has looked. They are two statements because
-- the number has to be read after the first lock is held.
SELECT pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid());
SELECT pg_advisory_xact_lock_shared((20563::bigint << 48) | (last_value - (NOT is_called)::integer))
FROM penstock_log_segment_seq
