-- Remove these consumers.
DELETE FROM penstock_consumer WHERE queue = :queue AND name = ANY(:names)
