-- Messages whose newest entries leave the log: they are between two offsets.
DELETE FROM penstock_newest
WHERE message = ANY(:messages) AND entry >= :first AND entry < :last
