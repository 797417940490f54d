-- Where the store is. A dump that is restored makes another table, and so does a copy of the files.
SELECT CONCAT_WS(
    ' ',
    CONCAT('database=', HEX(DATABASE())),
    CONCAT('table=', UNIX_TIMESTAMP(create_time))
)
FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = 'penstock_store'
