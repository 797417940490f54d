-- A new epoch of the store begins here.
UPDATE penstock_store SET epoch = :epoch, place = :place WHERE one = 1
