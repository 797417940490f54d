-- Remove tickets whose transactions have committed.
DELETE FROM penstock_ticket WHERE number IN (:numbers)
