-- Insert the identity of a new store, unless another server was first.
INSERT IGNORE INTO penstock_store (one, store, epoch, place) VALUES (1, :store, :epoch, :place)
