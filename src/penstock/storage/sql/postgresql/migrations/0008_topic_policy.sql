-- Servers of an older version can no longer read the catalog, and so cannot write:
-- every migration raises the versions of all catalogs, so they have to read theirs again, and find
-- this table gone. Newer servers compare the number of the schema when they read the catalog.
ALTER TABLE penstock_topic RENAME TO penstock_topic_policy;
