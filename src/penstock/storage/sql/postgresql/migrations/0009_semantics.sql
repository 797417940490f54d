-- Columns are named after what they hold.
ALTER TABLE penstock_run RENAME COLUMN place TO row_key;
ALTER TABLE penstock_run RENAME COLUMN life TO record;
ALTER TABLE penstock_log RENAME COLUMN heads TO metadata;
