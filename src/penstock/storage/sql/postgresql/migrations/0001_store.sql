-- The store. Times are epoch milliseconds, names and texts are compared byte by byte.

CREATE TABLE penstock_tenant (
    number     integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    -- Raised by every change of a queue or a topic of the tenant.
    version    bigint NOT NULL DEFAULT 1,
    -- Every entry at or below it has a verified copy.
    archived   bigint,
    -- The offset after the last entry that retention removed.
    trimmed    bigint
);

CREATE TABLE penstock_queue (
    number         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant         integer NOT NULL REFERENCES penstock_tenant,
    name           text COLLATE "C" NOT NULL,
    policy         bytea NOT NULL,
    filter_version integer NOT NULL DEFAULT 1,
    created_at     bigint NOT NULL,
    -- The next offset to route; null when the queue is caught up.
    cursor         bigint,
    -- Behind, but what is published goes to it already: publishes that began at or below this
    -- segment may not know that yet; -1 until it is known which.
    joining        bigint,
    -- None of those is open any more: when the log is routed up to here the queue is caught up.
    closing        bigint,
    dead_paused    boolean NOT NULL DEFAULT false,
    -- The epoch of the last partition that was taken.
    epoch          bigint NOT NULL DEFAULT 0,
    UNIQUE (tenant, name)
);

-- Queues that were deleted, until nothing of them is left.
CREATE TABLE penstock_dropped (
    queue integer PRIMARY KEY,
    at    bigint NOT NULL
);

CREATE TABLE penstock_topic (
    tenant integer NOT NULL REFERENCES penstock_tenant,
    name   text COLLATE "C" NOT NULL,
    policy bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- The log: one row per publish. Rows are appended and deleted, never changed.
CREATE TABLE penstock_log (
    segment      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant       integer NOT NULL,
    published_at bigint NOT NULL,
    entries      integer NOT NULL,
    heads        bytea NOT NULL,
    payloads     bytea NOT NULL
);
ALTER TABLE penstock_log ALTER COLUMN heads SET STORAGE EXTERNAL;
ALTER TABLE penstock_log ALTER COLUMN payloads SET STORAGE EXTERNAL;
CREATE INDEX penstock_log_tenant ON penstock_log (tenant, segment);

-- Delivery state: one row for deliveries of one queue and segment with the same history.
-- Rows are small, come and go all the time, and are looked up by their places only.
CREATE TABLE penstock_run (
    queue         integer NOT NULL,
    phase         smallint NOT NULL,
    rank          smallint NOT NULL,
    place         bigint NOT NULL,
    segment       bigint NOT NULL,
    size          integer NOT NULL,
    until         bigint,
    partition_key bytea,
    consumer      text COLLATE "C",
    members       bytea NOT NULL,
    life          bytea NOT NULL,
    PRIMARY KEY (queue, phase, rank, place)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.0,
    autovacuum_analyze_threshold = 50000
);
CREATE INDEX penstock_run_until ON penstock_run (queue, phase, until) WHERE until IS NOT NULL;
CREATE INDEX penstock_run_segment ON penstock_run (segment, queue);
-- Only what an ordered queue still has to deliver has a partition key here.
CREATE INDEX penstock_run_partition ON penstock_run (queue, partition_key, phase, segment)
    WHERE partition_key IS NOT NULL;

-- Changes of the counts in stats, one row per change; the sweep adds them up.
CREATE TABLE penstock_tally (
    queue  integer NOT NULL,
    kind   smallint NOT NULL,
    number bigint GENERATED ALWAYS AS IDENTITY,
    delta  bigint NOT NULL,
    PRIMARY KEY (queue, kind, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

-- Idempotency ids (kind 0) and batch ids (kind 1).
CREATE TABLE penstock_id (
    tenant    integer NOT NULL,
    kind      smallint NOT NULL,
    topic     text COLLATE "C" NOT NULL,
    id        bytea NOT NULL,
    at        bigint NOT NULL,
    -- When it may be forgotten.
    until     bigint NOT NULL,
    -- The transaction that wrote it down.
    token     bigint NOT NULL,
    message   bigint,
    entry     bigint,
    reply     bytea,
    PRIMARY KEY (tenant, kind, topic, id)
);
CREATE INDEX penstock_id_until ON penstock_id (until);

-- Keys that are open.
CREATE TABLE penstock_key (
    tenant  integer NOT NULL,
    topic   text COLLATE "C" NOT NULL,
    key     bytea NOT NULL,
    message bigint NOT NULL,
    PRIMARY KEY (tenant, topic, key)
);
CREATE INDEX penstock_key_message ON penstock_key (message);

-- The newest entries of messages that were replaced.
CREATE TABLE penstock_newest (
    message bigint PRIMARY KEY,
    tenant  integer NOT NULL,
    entry   bigint NOT NULL
);

-- Who takes part in an ordered queue, and until when.
CREATE TABLE penstock_consumer (
    queue    integer NOT NULL,
    name     text COLLATE "C" NOT NULL,
    deadline bigint NOT NULL,
    PRIMARY KEY (queue, name)
);

-- Who has which partition, since which epoch.
CREATE TABLE penstock_owner (
    queue         integer NOT NULL,
    partition_key bytea NOT NULL,
    consumer      text COLLATE "C" NOT NULL,
    epoch         bigint NOT NULL,
    PRIMARY KEY (queue, partition_key)
);

-- What every replay id has moved.
CREATE TABLE penstock_replayed (
    queue     integer NOT NULL,
    dead      boolean NOT NULL,
    replay_id text COLLATE "C" NOT NULL,
    message   bigint NOT NULL,
    PRIMARY KEY (queue, dead, replay_id, message)
);

CREATE TABLE penstock_document (
    kind  text COLLATE "C" NOT NULL,
    name  text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (kind, name)
);

-- How often the store was opened; it distinguishes servers.
CREATE SEQUENCE penstock_server;
