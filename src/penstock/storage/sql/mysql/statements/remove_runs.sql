-- Delete runs of one rank (S3).
DELETE FROM penstock_run
WHERE queue = :queue AND phase = :phase AND `rank` = :rank AND place IN (:places)
