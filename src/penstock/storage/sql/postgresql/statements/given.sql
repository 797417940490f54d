-- The last segment that was given out, committed or not (L2). Sequences know no transactions.
SELECT last_value - (NOT is_called)::integer FROM penstock_log_segment_seq
