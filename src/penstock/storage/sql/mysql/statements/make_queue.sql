-- Create a queue.
INSERT INTO penstock_queue (tenant, name, policy, created_at, `cursor`)
VALUES (:tenant, :name, :policy, :now, :cursor)
