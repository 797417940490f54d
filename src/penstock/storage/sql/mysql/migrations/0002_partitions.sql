-- The number of unsettled deliveries in every partition of an ordered queue.

-- What the sweep has added up. Only the sweep writes here.
CREATE TABLE penstock_partition (
    queue         INT NOT NULL,
    partition_key VARBINARY(512) NOT NULL,
    unsettled     BIGINT NOT NULL,
    PRIMARY KEY (queue, partition_key)
) ENGINE = InnoDB;

-- Changes since then, one row per change, so that no transaction waits for the lock of another.
CREATE TABLE penstock_partition_tally (
    queue         INT NOT NULL,
    number        BIGINT NOT NULL AUTO_INCREMENT,
    partition_key VARBINARY(512) NOT NULL,
    delta         BIGINT NOT NULL,
    PRIMARY KEY (queue, number),
    KEY penstock_partition_tally_number (number)
) ENGINE = InnoDB;

INSERT INTO penstock_partition (queue, partition_key, unsettled)
SELECT queue, partition_key, SUM(size)
FROM penstock_run
WHERE partition_key IS NOT NULL
GROUP BY queue, partition_key;
