-- Close a key: its next publish is a new message.
DELETE FROM penstock_key
WHERE tenant = :tenant AND topic = :topic AND `key` = :key
