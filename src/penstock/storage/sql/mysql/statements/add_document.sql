-- Store a document unless there is one.
INSERT IGNORE INTO penstock_document (kind, name, value) VALUES (:kind, :name, :value)
