-- Store a document unless there is one.
INSERT INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)
ON CONFLICT (kind, name) DO NOTHING
