-- The numbers of servers are leased, so that no two live servers have the same one.

DROP TABLE penstock_server;

-- Who has which number, and until when by the database's clock.
CREATE TABLE penstock_server (
    number SMALLINT NOT NULL PRIMARY KEY,
    -- A random number that the server knows.
    holder BIGINT NOT NULL,
    until  BIGINT NOT NULL,
    KEY penstock_server_until (until)
) ENGINE = InnoDB;
