-- Remove a document.
DELETE FROM penstock_document WHERE kind = :kind AND name = :name
