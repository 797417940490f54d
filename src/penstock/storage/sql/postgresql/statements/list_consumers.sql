-- The consumers of an ordered queue, and their deadlines (O1).
SELECT name, deadline FROM penstock_consumer WHERE queue = :queue
