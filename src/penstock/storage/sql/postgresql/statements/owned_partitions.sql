-- The partitions of these consumers.
SELECT partition_key FROM penstock_owner WHERE queue = :queue AND consumer = ANY(:consumers)
