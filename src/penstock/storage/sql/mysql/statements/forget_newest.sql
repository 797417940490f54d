-- Forget the newest entries of messages, if they are between two offsets and leave the log.
DELETE gone
FROM (SELECT CAST(:messages AS SIGNED) AS message) AS old
STRAIGHT_JOIN penstock_newest AS gone FORCE INDEX (PRIMARY)
    ON gone.message = old.message AND gone.entry >= :first AND gone.entry < :last
