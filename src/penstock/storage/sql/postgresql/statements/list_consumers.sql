-- Who takes part in an ordered queue, and until when (O1).
SELECT name, deadline FROM penstock_consumer WHERE queue = :queue
