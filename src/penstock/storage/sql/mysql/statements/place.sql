-- Where the store is. Only what maintenance leaves alone: OPTIMIZE and ALTER make another table, with
-- another date, and the name and address of a server change with its container. MySQL keeps a random
-- id in its data directory; MariaDB has none, and skips comments marked for MySQL 5.7 and later.
SELECT CONCAT_WS(
    ' ',
    CONCAT('database=', HEX(DATABASE()))
    /*!80000 , CONCAT('server=', @@server_uuid) */
)
