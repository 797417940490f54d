-- One document, as of now.
SELECT value FROM penstock_document WHERE kind = :kind AND name = :name FOR UPDATE
