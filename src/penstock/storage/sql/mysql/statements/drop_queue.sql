-- Record a deleted queue for the sweep.
INSERT INTO penstock_dropped (queue, at) VALUES (:queue, :now)
