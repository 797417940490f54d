-- Forget the newest entries of messages, if they are between two offsets and leave the log.
DELETE FROM penstock_newest
WHERE message = ANY(:messages) AND entry >= :first AND entry < :last
