-- The epoch of the store, and the place that it is at.
UPDATE penstock_store SET epoch = :epoch, place = :place WHERE one = 1
