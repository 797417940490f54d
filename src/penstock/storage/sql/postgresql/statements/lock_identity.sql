-- The identity of the store, held until the transaction ends.
SELECT store, epoch, place FROM penstock_store WHERE one = 1 FOR UPDATE
