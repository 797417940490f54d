-- Which store this is: one row, written by the first server that opens the store. A position in the
-- log that was noted elsewhere belongs to one identity and one epoch.
CREATE TABLE penstock_store (
    one   smallint PRIMARY KEY CHECK (one = 1),
    store bytea NOT NULL,
    -- New after every restore and every copy.
    epoch bytea NOT NULL,
    -- Where the epoch began; a copy of the database is somewhere else.
    place text NOT NULL
);
