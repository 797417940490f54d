-- The numbers of servers are leased, so that no two live servers have the same one, and a new row
-- never overwrites another. Servers of the previous version would go on and overwrite: they find their
-- function gone.

DROP SEQUENCE penstock_server;

-- Who has which number, and until when by the database's clock.
CREATE TABLE penstock_server (
    number smallint PRIMARY KEY,
    -- A random number that the server knows.
    holder bigint NOT NULL,
    until  bigint NOT NULL
);
CREATE INDEX penstock_server_until ON penstock_server (until);

DROP FUNCTION penstock_write;

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
--
-- The first runs, as many as replaced says, replace rows of the same keys, which this transaction
-- has locked. The others are new: a key that is taken fails the transaction (C1).
CREATE FUNCTION penstock_write(
    of_tenant integer, publishing boolean, expected bigint,
    appended_at bigint, segment_entries integer[], segment_heads bytea[], segment_payloads bytea[],
    held_queues integer[], held_phases smallint[], held_ranks smallint[], held_places bigint[],
    held_sizes integer[], held_members bytea[], held_lives bytea[],
    gone_queues integer[], gone_phases smallint[], gone_ranks smallint[], gone_places bigint[],
    run_queues integer[], run_phases smallint[], run_ranks smallint[], run_places bigint[],
    run_segments bigint[], run_sizes integer[], run_untils bigint[], run_partitions bytea[],
    run_consumers text[], run_members bytea[], run_lives bytea[], replaced integer,
    count_queues integer[], count_kinds smallint[], count_deltas bigint[],
    partition_queues integer[], partition_keys bytea[], partition_deltas bigint[],
    OUT catalog bigint, OUT written boolean, OUT numbers bigint[]
)
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    there integer;
    changed integer;
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
    IF replaced > 0 THEN
        UPDATE penstock_run AS run
        SET segment = new.segment, size = new.size, until = new.until,
            partition_key = new.partition_key, consumer = new.consumer,
            members = new.members, life = new.life
        FROM unnest(
            run_queues, run_phases, run_ranks, run_places, run_segments, run_sizes, run_untils,
            run_partitions, run_consumers, run_members, run_lives
        ) WITH ORDINALITY AS new (
            queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life,
            ordinal
        )
        WHERE new.ordinal <= replaced AND run.queue = new.queue AND run.phase = new.phase
            AND run.rank = new.rank AND run.place = new.place;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed < replaced THEN
            RAISE EXCEPTION 'a row that is to be replaced is gone'
            USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    IF cardinality(run_queues) > replaced THEN
        INSERT INTO penstock_run (
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
        ) WITH ORDINALITY AS new (
            queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life,
            ordinal
        )
        WHERE new.ordinal > replaced;
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
