-- Delete runs of one rank (S3).
DELETE gone
FROM (SELECT CAST(:places AS SIGNED) AS place) AS old
STRAIGHT_JOIN penstock_run AS gone FORCE INDEX (PRIMARY)
    ON gone.queue = :queue AND gone.phase = :phase AND gone.`rank` = :rank
    AND gone.place = old.place
