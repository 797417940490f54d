-- What a queue may still give or take, where its policy has a limit, for all servers together.

CREATE TABLE penstock_limit (
    queue        INT NOT NULL,
    -- 0: its depth, which is locked and not counted here; 1: its throughput; 2: that of its dead
    -- letters.
    kind         SMALLINT NOT NULL,
    -- Tokens a second, thousandths of tokens that were left, and when.
    rate         BIGINT NOT NULL,
    milli_tokens BIGINT NOT NULL,
    filled_at    BIGINT NOT NULL,
    PRIMARY KEY (queue, kind)
) ENGINE = InnoDB;
