-- A tenant exists as soon as it is named, however many servers name it.
INSERT INTO penstock_tenant (name)
VALUES (:name)
ON CONFLICT (name) DO NOTHING
