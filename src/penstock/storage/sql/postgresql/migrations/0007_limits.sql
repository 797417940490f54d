-- What a queue may still give or take, where its policy has a limit, for all servers together.
-- Servers of before would go on and keep limits of their own: they are refused by the version.

CREATE TABLE penstock_limit (
    queue        integer NOT NULL,
    -- 0: its depth, which is locked and not counted here; 1: its throughput; 2: that of its dead
    -- letters.
    kind         smallint NOT NULL,
    -- Tokens a second, thousandths of tokens that were left, and when.
    rate         bigint NOT NULL,
    milli_tokens bigint NOT NULL,
    filled_at    bigint NOT NULL,
    PRIMARY KEY (queue, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
