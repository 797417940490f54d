-- Set the epoch of the store, and the place that identifies its database.
UPDATE penstock_store SET epoch = :epoch, place = :place WHERE one = 1
