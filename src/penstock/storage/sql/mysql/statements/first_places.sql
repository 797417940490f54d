-- The first place of a phase in every rank, not below a floor: one look into the index each.
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 0 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 1 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 2 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 3 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 4 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 5 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 6 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 7 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 8 AND place >= :floor
    ORDER BY place LIMIT 1
)
UNION ALL
(
    SELECT place FROM penstock_run FORCE INDEX (PRIMARY)
    WHERE queue = :queue AND phase = :phase AND `rank` = 9 AND place >= :floor
    ORDER BY place LIMIT 1
)
