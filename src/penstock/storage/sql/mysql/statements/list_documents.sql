-- All documents of a kind, by name.
SELECT CONVERT(name USING utf8mb4), value FROM penstock_document
WHERE kind = :kind
ORDER BY penstock_document.name
