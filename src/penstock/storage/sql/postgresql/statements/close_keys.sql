-- Close the keys of these messages: their next publish is a new message.
DELETE FROM penstock_key
WHERE message = ANY(:messages)
