-- No floor: to find a rank empty InnoDB walks past all that is gone from the next one, so with a
-- floor in every rank it would walk that way several times instead of once.
SELECT 0
