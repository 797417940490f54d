-- The first place of a phase in every rank, not below a floor.
SELECT MIN(place)
FROM penstock_run FORCE INDEX (PRIMARY)
WHERE queue = :queue AND phase = :phase AND `rank` IN (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
    AND place >= :floor
GROUP BY `rank`
