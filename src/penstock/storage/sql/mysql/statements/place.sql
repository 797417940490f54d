-- Identifies the database, by values that maintenance does not change: OPTIMIZE and ALTER create
-- another table, with another date, and a server's name and address change with its container. MySQL
-- has a random id in its data directory. MariaDB has none, but knows when a row was inserted, which
-- restoring a dump does anew. Each server skips the comment of the other.
SELECT CONCAT_WS(
    ' ',
    CONCAT('database=', HEX(DATABASE()))
    /*!80000 , CONCAT('server=', @@server_uuid) */
    /*M!100300 , (
        SELECT CONCAT('inserted=', UNIX_TIMESTAMP(ROW_START)) FROM penstock_place WHERE one = 1
    ) */
)
