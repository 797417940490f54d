-- A number for a server that opens the store.
INSERT INTO penstock_server (one, number) VALUES (1, LAST_INSERT_ID(1))
ON DUPLICATE KEY UPDATE number = LAST_INSERT_ID(number + 1)
