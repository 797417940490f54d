-- The database's clock, in epoch milliseconds.
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint
