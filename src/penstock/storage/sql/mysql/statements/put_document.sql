-- Store or replace a document.
INSERT INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)
ON DUPLICATE KEY UPDATE value = VALUES(value)
