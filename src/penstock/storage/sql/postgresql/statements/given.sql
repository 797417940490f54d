-- The last segment number assigned, committed or not (L2). Sequences are not transactional.
SELECT last_value - (NOT is_called)::integer FROM penstock_log_segment_seq
