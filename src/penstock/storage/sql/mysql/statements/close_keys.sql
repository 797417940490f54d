-- Close the keys of these messages: their next publish is a new message.
DELETE gone
FROM (SELECT CAST(:messages AS SIGNED) AS message) AS old
STRAIGHT_JOIN penstock_key AS gone FORCE INDEX (penstock_key_message)
    ON gone.message = old.message
