-- Hold a shared lock that names the last segment given out, until the transaction ends (L2).
-- What this transaction appends is above it; readers stay below while the lock is there.
SELECT pg_advisory_xact_lock_shared((20563::bigint << 48) | (last_value - (NOT is_called)::integer))
FROM penstock_log_segment_seq
