-- Rows whose sum takes their place in the same commit (Q2).
DELETE FROM penstock_tally
WHERE queue = :queue AND kind = :kind AND number IN (:numbers)
