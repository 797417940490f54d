-- The last segment number assigned, committed or not (L2): from the rows, and from the counter,
-- because retention removes rows.
SELECT GREATEST(
    COALESCE((SELECT MAX(segment) FROM penstock_log), 0),
    COALESCE((
        SELECT CAST(`auto_increment` AS SIGNED) - 1
        FROM information_schema.tables
        WHERE table_schema = DATABASE() AND table_name = 'penstock_log'
    ), 0)
)
