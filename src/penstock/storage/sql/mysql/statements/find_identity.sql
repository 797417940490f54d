-- The identity of the store.
SELECT store, epoch, place FROM penstock_store WHERE one = 1
