-- All documents of a kind, by name.
SELECT name, value FROM penstock_document WHERE kind = :kind ORDER BY name
