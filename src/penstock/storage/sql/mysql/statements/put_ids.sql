-- Write the messages and replies of ids (P4).
INSERT INTO penstock_id (tenant, kind, topic, id, at, until, token, message, entry, reply)
VALUES :rows
ON DUPLICATE KEY UPDATE
    at = VALUES(at), until = VALUES(until), token = VALUES(token),
    message = VALUES(message), entry = VALUES(entry), reply = VALUES(reply)
