-- Which store this is: one row, written by the first server that opens the store. A position in the
-- log that was noted elsewhere belongs to one identity and one epoch. The table is never altered:
-- the time of its creation is what a restored one does not share.
CREATE TABLE penstock_store (
    one   SMALLINT NOT NULL PRIMARY KEY,
    store VARBINARY(16) NOT NULL,
    epoch VARBINARY(16) NOT NULL,
    place VARCHAR(1024) CHARACTER SET ascii COLLATE ascii_bin NOT NULL
) ENGINE = InnoDB;
