-- Lock one document.
SELECT value FROM penstock_document WHERE kind = :kind AND name = :name FOR UPDATE
