-- Hold a shared lock that names the last segment assigned, until the transaction ends (L2).
-- This transaction appends above it; readers stay below while the lock is held.
-- The first lock announces that the transaction is about to name a segment: readers wait for the
-- second, so that no reader passes a number that is named after its read. They are two statements
-- because the number must be read while the first lock is held.
SELECT pg_advisory_xact_lock_shared((20564::bigint << 48) | pg_backend_pid());
SELECT pg_advisory_xact_lock_shared((20563::bigint << 48) | (last_value - (NOT is_called)::integer))
FROM penstock_log_segment_seq
