-- Where the store is. Only what maintenance leaves alone: OPTIMIZE and ALTER make another table, with
-- another date, and the name and address of a server change with its container. MySQL keeps a random
-- id in its data directory. MariaDB has none, but knows when a row was inserted, which a restored dump
-- does anew. Each skips the comment of the other.
SELECT CONCAT_WS(
    ' ',
    CONCAT('database=', HEX(DATABASE()))
    /*!80000 , CONCAT('server=', @@server_uuid) */
    /*M!100300 , (
        SELECT CONCAT('inserted=', UNIX_TIMESTAMP(ROW_START)) FROM penstock_place WHERE one = 1
    ) */
)
