-- Remember that a queue is gone, for the sweep.
INSERT INTO penstock_dropped (queue, at) VALUES (:queue, :now)
