-- Append segments to the log, in order (L1).
INSERT INTO penstock_log (tenant, published_at, entries, heads, payloads)
VALUES :rows
