-- Store or replace a document.
INSERT INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)
ON CONFLICT (kind, name) DO UPDATE SET value = excluded.value
