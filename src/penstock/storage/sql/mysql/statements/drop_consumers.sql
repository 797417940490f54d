-- Remove these consumers.
DELETE gone
FROM (SELECT CAST(:names AS CHAR) COLLATE utf8mb4_bin AS name) AS old
STRAIGHT_JOIN penstock_consumer AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.name = old.name
