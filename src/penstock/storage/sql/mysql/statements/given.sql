-- The last segment that was given out, committed or not (L2): by the rows that are there, and by
-- the counter, since retention removes rows.
SELECT GREATEST(
    COALESCE((SELECT MAX(segment) FROM penstock_log), 0),
    COALESCE((
        SELECT CAST(`auto_increment` AS SIGNED) - 1
        FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name = 'penstock_log'
    ), 0)
)
