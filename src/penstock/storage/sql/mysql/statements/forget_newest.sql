-- Messages whose newest entries leave the log: they are between two offsets.
DELETE gone
FROM (SELECT CAST(:messages AS SIGNED) AS message) AS old
STRAIGHT_JOIN penstock_newest AS gone FORCE INDEX (PRIMARY)
    ON gone.message = old.message AND gone.entry >= :first AND gone.entry < :last
