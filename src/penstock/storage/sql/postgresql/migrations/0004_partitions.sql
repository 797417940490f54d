-- The number of unsettled deliveries in every partition of an ordered queue.
-- Servers of before would go on and not count it: they find their functions gone.

LOCK TABLE penstock_run IN SHARE ROW EXCLUSIVE MODE;

-- What the sweep has added up. Only the sweep writes here.
CREATE TABLE penstock_partition (
    queue         integer NOT NULL,
    partition_key bytea NOT NULL,
    unsettled     bigint NOT NULL,
    PRIMARY KEY (queue, partition_key)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

-- Changes since then, one row per change, so that no transaction waits for the lock of another.
CREATE TABLE penstock_partition_tally (
    queue         integer NOT NULL,
    number        bigint GENERATED ALWAYS AS IDENTITY,
    partition_key bytea NOT NULL,
    delta         bigint NOT NULL,
    PRIMARY KEY (queue, number)
) WITH (
    autovacuum_vacuum_scale_factor = 0.0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

INSERT INTO penstock_partition (queue, partition_key, unsettled)
SELECT queue, partition_key, sum(size)
FROM penstock_run
WHERE partition_key IS NOT NULL
GROUP BY queue, partition_key;

-- By their places, the first of a partition comes first, however many partitions a segment has. The
-- phase is an expression, so that only this index serves queries that use it: a
-- planner that takes the table for a small one would as soon read all of a phase by the primary key.
DROP INDEX penstock_run_partition;
CREATE INDEX penstock_run_partition ON penstock_run (queue, partition_key, (phase + 0), place)
    WHERE partition_key IS NOT NULL;

DROP FUNCTION penstock_write;
DROP FUNCTION penstock_publish;

-- Everything that a verb writes, in one call: it may be a transaction of its own, and is then one
-- round trip. What it does is decided elsewhere; here it is checked and written.
--
-- Where publishing is true a shared lock names the last segment given out, until the transaction
-- ends: what is appended is above it, and readers stay below (L2). Every statement after that sees
-- what was committed before it, so a statement that sees the old catalog already has the lock.
--
-- Where a version is expected and the catalog has another one, or a run that is held is not as it
-- was read or is locked by others, nothing is written.
--
-- Of what there is nothing of, its lists are null.
--
-- Runs of the segments that are appended name the first of them -1, the second -2, and so on, and
-- have the index of their first member in the last bits of their place (L1, S3).
CREATE FUNCTION penstock_write(
    of_tenant integer, publishing boolean, expected bigint,
    appended_at bigint, segment_entries integer[], segment_heads bytea[], segment_payloads bytea[],
    held_queues integer[], held_phases smallint[], held_ranks smallint[], held_places bigint[],
    held_sizes integer[], held_members bytea[], held_lives bytea[],
    gone_queues integer[], gone_phases smallint[], gone_ranks smallint[], gone_places bigint[],
    run_queues integer[], run_phases smallint[], run_ranks smallint[], run_places bigint[],
    run_segments bigint[], run_sizes integer[], run_untils bigint[], run_partitions bytea[],
    run_consumers text[], run_members bytea[], run_lives bytea[],
    count_queues integer[], count_kinds smallint[], count_deltas bigint[],
    partition_queues integer[], partition_keys bytea[], partition_deltas bigint[],
    OUT catalog bigint, OUT written boolean, OUT numbers bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    there integer;
    given bigint;
BEGIN
    written := false;
    numbers := '{}';
    IF publishing THEN
        PERFORM pg_advisory_xact_lock_shared(
            (20563::bigint << 48) | (last_value - (NOT is_called)::integer)
        )
        FROM penstock_log_segment_seq;
    END IF;
    SELECT version INTO catalog FROM penstock_tenant WHERE number = of_tenant;
    IF expected IS NOT NULL AND catalog IS DISTINCT FROM expected THEN
        RETURN;
    END IF;
    IF cardinality(held_queues) > 0 THEN
        SELECT count(*) INTO there
        FROM (
            SELECT run.place
            FROM unnest(
                held_queues, held_phases, held_ranks, held_places,
                held_sizes, held_members, held_lives
            ) AS held (queue, phase, rank, place, size, members, life)
            CROSS JOIN LATERAL (
                SELECT place FROM penstock_run
                WHERE queue = held.queue AND phase = held.phase
                    AND rank = held.rank AND place = held.place
                    AND size = held.size AND members = held.members AND life = held.life
                FOR UPDATE SKIP LOCKED
            ) AS run
        ) AS same;
        IF there < cardinality(held_queues) THEN
            RETURN;
        END IF;
    END IF;
    FOR ordinal IN 1 .. coalesce(cardinality(segment_entries), 0) LOOP
        INSERT INTO penstock_log (tenant, published_at, entries, heads, payloads)
        VALUES (
            of_tenant, appended_at,
            segment_entries[ordinal], segment_heads[ordinal], segment_payloads[ordinal]
        )
        RETURNING segment INTO given;
        numbers[ordinal] := given;
    END LOOP;
    IF cardinality(gone_queues) > 0 THEN
        DELETE FROM penstock_run AS run
        USING unnest(gone_queues, gone_phases, gone_ranks, gone_places)
            AS old (queue, phase, rank, place)
        WHERE run.queue = old.queue AND run.phase = old.phase
            AND run.rank = old.rank AND run.place = old.place;
    END IF;
    IF cardinality(run_queues) > 0 THEN
        INSERT INTO penstock_run AS run (
            queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
        )
        SELECT
            new.queue, new.phase, new.rank,
            CASE
                WHEN new.segment < 0 THEN numbers[-new.segment] << 14 | (new.place & 16383)
                ELSE new.place
            END,
            CASE WHEN new.segment < 0 THEN numbers[-new.segment] ELSE new.segment END,
            new.size, new.until, new.partition_key, new.consumer, new.members, new.life
        FROM unnest(
            run_queues, run_phases, run_ranks, run_places, run_segments, run_sizes, run_untils,
            run_partitions, run_consumers, run_members, run_lives
        ) AS new (
            queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
        )
        ON CONFLICT (queue, phase, rank, place) DO UPDATE SET
            segment = excluded.segment, size = excluded.size, until = excluded.until,
            partition_key = excluded.partition_key, consumer = excluded.consumer,
            members = excluded.members, life = excluded.life;
    END IF;
    IF cardinality(count_queues) > 0 THEN
        INSERT INTO penstock_tally (queue, kind, delta)
        SELECT * FROM unnest(count_queues, count_kinds, count_deltas);
    END IF;
    IF cardinality(partition_queues) > 0 THEN
        INSERT INTO penstock_partition_tally (queue, partition_key, delta)
        SELECT * FROM unnest(partition_queues, partition_keys, partition_deltas);
    END IF;
    written := true;
END
$$;

-- What a plain publish writes, in one call that is a transaction of its own: segments of the log, the
-- runs of their queues, which are fresh, and how many that is. penstock_write can do the same, and
-- takes a fifth longer.
--
-- A shared lock names the last segment given out, until the transaction ends: what is appended is
-- above it, and readers stay below (L2). The statement after that sees what was committed before it,
-- so a statement that sees the old catalog already has the lock. Of another version of the catalog
-- nothing is written, and numbers is null.
--
-- Runs name their segments by their positions in the lists, the first is 1. If no run has a
-- partition key the list of these is null.
CREATE FUNCTION penstock_publish(
    of_tenant integer, expected bigint, published bigint,
    segment_entries integer[], segment_heads bytea[], segment_payloads bytea[],
    run_queues integer[], run_segments integer[], run_ranks smallint[], run_firsts integer[],
    run_sizes integer[], run_partitions bytea[], run_members bytea[], run_lives bytea[],
    OUT numbers bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    catalog bigint;
    given bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(
        (20563::bigint << 48) | (last_value - (NOT is_called)::integer)
    )
    FROM penstock_log_segment_seq;
    SELECT version INTO catalog FROM penstock_tenant WHERE number = of_tenant;
    IF catalog IS DISTINCT FROM expected THEN
        RETURN;
    END IF;
    FOR ordinal IN 1 .. cardinality(segment_entries) LOOP
        INSERT INTO penstock_log (tenant, published_at, entries, heads, payloads)
        VALUES (
            of_tenant, published,
            segment_entries[ordinal], segment_heads[ordinal], segment_payloads[ordinal]
        )
        RETURNING segment INTO given;
        numbers[ordinal] := given;
    END LOOP;
    INSERT INTO penstock_run (
        queue, phase, rank, place, segment, size, partition_key, members, life
    )
    SELECT
        new.queue, 0, new.rank, numbers[new.segment] << 14 | new.first, numbers[new.segment],
        new.size, new.partition_key, new.members, new.life
    FROM unnest(
        run_queues, run_segments, run_ranks, run_firsts, run_sizes, run_partitions,
        run_members, run_lives
    ) AS new (queue, segment, rank, first, size, partition_key, members, life);
    -- What is fresh is counted with what has come back: both are available.
    INSERT INTO penstock_tally (queue, kind, delta)
    SELECT new.queue, 1, new.size FROM unnest(run_queues, run_sizes) AS new (queue, size);
    IF run_partitions IS NOT NULL THEN
        INSERT INTO penstock_partition_tally (queue, partition_key, delta)
        SELECT new.queue, new.partition_key, new.size
        FROM unnest(run_queues, run_partitions, run_sizes) AS new (queue, partition_key, size)
        WHERE new.partition_key IS NOT NULL;
    END IF;
END
$$;
