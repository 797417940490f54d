-- A row that distinguishes a restored database from the one that was dumped. MariaDB notes when a row of a
-- versioned table was inserted, keeps that through OPTIMIZE, ALTER, restarts and upgrades, and a dump
-- does not contain it: restoring inserts the row again. MySQL has no such tables, and has the id of the
-- server instead. The row is never changed.
CREATE TABLE penstock_place (
    one SMALLINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB /*M!100300 WITH SYSTEM VERSIONING */;

INSERT INTO penstock_place (one) VALUES (1);
