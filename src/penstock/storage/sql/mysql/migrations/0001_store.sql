-- The store. Times are epoch milliseconds. Names are compared byte by byte and have no spaces;
-- text that callers provide is stored as bytes. No statement needs a foreign key.

CREATE TABLE penstock_tenant (
    number     INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    name       VARCHAR(132) NOT NULL,
    -- Raised by every change of a queue or a topic of the tenant.
    version    BIGINT NOT NULL DEFAULT 1,
    -- Every entry at or below it has a verified copy.
    archived   BIGINT,
    -- The offset after the last entry that retention removed.
    trimmed    BIGINT,
    UNIQUE KEY penstock_tenant_name (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE penstock_queue (
    number         INT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant         INT NOT NULL,
    name           VARCHAR(132) NOT NULL,
    policy         LONGBLOB NOT NULL,
    filter_version INT NOT NULL DEFAULT 1,
    created_at     BIGINT NOT NULL,
    -- The next offset to route; null when the queue is caught up.
    `cursor`       BIGINT,
    -- Behind, but what is published goes to it already: publishes that began at or below this
    -- segment may not know that yet; -1 until it is known which.
    joining        BIGINT,
    -- None of those is open any more: when the log is routed up to here the queue is caught up.
    closing        BIGINT,
    dead_paused    TINYINT NOT NULL DEFAULT 0,
    -- The epoch of the last partition that was taken.
    epoch          BIGINT NOT NULL DEFAULT 0,
    UNIQUE KEY penstock_queue_name (tenant, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Queues that were deleted, until nothing of them is left.
CREATE TABLE penstock_dropped (
    queue INT NOT NULL PRIMARY KEY,
    at    BIGINT NOT NULL
) ENGINE = InnoDB;

CREATE TABLE penstock_topic (
    tenant INT NOT NULL,
    name   VARCHAR(132) NOT NULL,
    policy LONGBLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The log: one row per publish. Rows are appended and deleted, never changed.
CREATE TABLE penstock_log (
    segment      BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant       INT NOT NULL,
    published_at BIGINT NOT NULL,
    entries      INT NOT NULL,
    heads        LONGBLOB NOT NULL,
    payloads     LONGBLOB NOT NULL,
    KEY penstock_log_tenant (tenant, segment)
) ENGINE = InnoDB;

-- One row per publish, written before it appends: while only a dirty read sees the row, the publish
-- is open, and the log is settled no further than base (see tickets.py).
CREATE TABLE penstock_ticket (
    number BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    base   BIGINT NOT NULL
) ENGINE = InnoDB;

-- Delivery state: one row for deliveries of one queue and segment with the same history.
-- Rows are small, come and go all the time, and are looked up by their places only.
CREATE TABLE penstock_run (
    queue         INT NOT NULL,
    phase         SMALLINT NOT NULL,
    `rank`        SMALLINT NOT NULL,
    place         BIGINT NOT NULL,
    segment       BIGINT NOT NULL,
    size          INT NOT NULL,
    -- The largest number where time never acts on the run: nulls would come first in the index.
    until         BIGINT NOT NULL,
    -- Only what an ordered queue still has to deliver has a partition key here.
    partition_key VARBINARY(512),
    consumer      VARCHAR(132),
    members       MEDIUMBLOB NOT NULL,
    life          LONGBLOB NOT NULL,
    PRIMARY KEY (queue, phase, `rank`, place),
    KEY penstock_run_until (queue, phase, until),
    KEY penstock_run_segment (segment, queue),
    KEY penstock_run_partition (queue, partition_key, phase, segment, place)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Changes of the counts in stats, one row per change; the sweep adds them up.
CREATE TABLE penstock_tally (
    queue  INT NOT NULL,
    kind   SMALLINT NOT NULL,
    number BIGINT NOT NULL AUTO_INCREMENT,
    delta  BIGINT NOT NULL,
    PRIMARY KEY (queue, kind, number),
    KEY penstock_tally_number (number)
) ENGINE = InnoDB;

-- Idempotency ids (kind 0) and batch ids (kind 1).
CREATE TABLE penstock_id (
    tenant    INT NOT NULL,
    kind      SMALLINT NOT NULL,
    topic     VARCHAR(132) NOT NULL,
    id        VARBINARY(512) NOT NULL,
    at        BIGINT NOT NULL,
    -- When it may be forgotten.
    until     BIGINT NOT NULL,
    -- The transaction that wrote it down.
    token     BIGINT NOT NULL,
    message   BIGINT,
    entry     BIGINT,
    reply     LONGBLOB,
    PRIMARY KEY (tenant, kind, topic, id),
    KEY penstock_id_until (until)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Keys that are open.
CREATE TABLE penstock_key (
    tenant  INT NOT NULL,
    topic   VARCHAR(132) NOT NULL,
    `key`   VARBINARY(512) NOT NULL,
    message BIGINT NOT NULL,
    PRIMARY KEY (tenant, topic, `key`),
    KEY penstock_key_message (message)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The newest entries of messages that were replaced.
CREATE TABLE penstock_newest (
    message BIGINT NOT NULL PRIMARY KEY,
    tenant  INT NOT NULL,
    entry   BIGINT NOT NULL
) ENGINE = InnoDB;

-- Who takes part in an ordered queue, and until when.
CREATE TABLE penstock_consumer (
    queue    INT NOT NULL,
    name     VARCHAR(132) NOT NULL,
    deadline BIGINT NOT NULL,
    PRIMARY KEY (queue, name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who has which partition, since which epoch.
CREATE TABLE penstock_owner (
    queue         INT NOT NULL,
    partition_key VARBINARY(512) NOT NULL,
    consumer      VARCHAR(132) NOT NULL,
    epoch         BIGINT NOT NULL,
    PRIMARY KEY (queue, partition_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What every replay id has moved.
CREATE TABLE penstock_replayed (
    queue     INT NOT NULL,
    dead      TINYINT NOT NULL,
    replay_id VARBINARY(512) NOT NULL,
    message   BIGINT NOT NULL,
    PRIMARY KEY (queue, dead, replay_id, message)
) ENGINE = InnoDB;

CREATE TABLE penstock_document (
    kind  VARBINARY(512) NOT NULL,
    name  VARBINARY(1024) NOT NULL,
    value LONGBLOB NOT NULL,
    PRIMARY KEY (kind, name)
) ENGINE = InnoDB;

-- How often the store was opened; it distinguishes servers. One row.
CREATE TABLE penstock_server (
    one    TINYINT NOT NULL PRIMARY KEY,
    number BIGINT NOT NULL
) ENGINE = InnoDB;
