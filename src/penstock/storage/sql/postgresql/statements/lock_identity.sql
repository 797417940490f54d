-- Lock the identity of the store until the transaction ends.
SELECT store, epoch, place FROM penstock_store WHERE one = 1 FOR UPDATE
