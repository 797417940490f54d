-- These consumers take part no longer.
DELETE FROM penstock_consumer WHERE queue = :queue AND name = ANY(:names)
