-- A number for a server that opens the store.
SELECT nextval('penstock_server')
