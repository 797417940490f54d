-- The functions of the schema. penstock migrate creates them again after the migrations whenever this
-- file has changed, so a change of a body belongs here and not in a migration. A change of the
-- arguments also needs a migration that drops the old function.

-- Writes everything that a verb changes, in one call: the call may be a transaction of its own, and
-- is then one round trip. Python decides what is written; this function checks and writes it.
--
-- If publishing is true, a shared lock names the last segment assigned until the transaction ends:
-- the transaction appends above it, and readers stay below (L2). Every later statement sees what was
-- committed before it, so a transaction that sees the old catalog already has the lock.
--
-- If a version is expected and the catalog has another one, or a held group is not as it was read or
-- is locked by another transaction, nothing is written.
--
-- Empty lists are passed as null.
--
-- Groups of appended segments name the first of them -1, the second -2, and so on, and have the index
-- of their first member in the low bits of their row_key (L1, S3).
--
-- The first groups, as many as replaced says, replace rows with the same keys, which this transaction
-- has locked. The others are new: a key that is taken fails the transaction (C1).
CREATE OR REPLACE FUNCTION penstock_write(
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
            SELECT run.row_key
            FROM unnest(
                held_queues, held_phases, held_ranks, held_places,
                held_sizes, held_members, held_lives
            ) AS held (queue, phase, rank, row_key, size, members, record)
            CROSS JOIN LATERAL (
                SELECT row_key FROM penstock_run
                WHERE queue = held.queue AND phase = held.phase
                    AND rank = held.rank AND row_key = held.row_key
                    AND size = held.size AND members = held.members AND record = held.record
                FOR UPDATE SKIP LOCKED
            ) AS run
        ) AS same;
        IF there < cardinality(held_queues) THEN
            RETURN;
        END IF;
    END IF;
    FOR ordinal IN 1 .. coalesce(cardinality(segment_entries), 0) LOOP
        INSERT INTO penstock_log (tenant, published_at, entries, metadata, payloads)
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
            AS old (queue, phase, rank, row_key)
        WHERE run.queue = old.queue AND run.phase = old.phase
            AND run.rank = old.rank AND run.row_key = old.row_key;
    END IF;
    IF replaced > 0 THEN
        UPDATE penstock_run AS run
        SET segment = new.segment, size = new.size, until = new.until,
            partition_key = new.partition_key, consumer = new.consumer,
            members = new.members, record = new.record
        FROM unnest(
            run_queues, run_phases, run_ranks, run_places, run_segments, run_sizes, run_untils,
            run_partitions, run_consumers, run_members, run_lives
        ) WITH ORDINALITY AS new (
            queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record,
            ordinal
        )
        WHERE new.ordinal <= replaced AND run.queue = new.queue AND run.phase = new.phase
            AND run.rank = new.rank AND run.row_key = new.row_key;
        GET DIAGNOSTICS changed = ROW_COUNT;
        IF changed < replaced THEN
            RAISE EXCEPTION 'a row that is to be replaced is gone'
            USING ERRCODE = 'serialization_failure';
        END IF;
    END IF;
    IF cardinality(run_queues) > replaced THEN
        INSERT INTO penstock_run (
            queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record
        )
        SELECT
            new.queue, new.phase, new.rank,
            CASE
                WHEN new.segment < 0 THEN numbers[-new.segment] << 14 | (new.row_key & 16383)
                ELSE new.row_key
            END,
            CASE WHEN new.segment < 0 THEN numbers[-new.segment] ELSE new.segment END,
            new.size, new.until, new.partition_key, new.consumer, new.members, new.record
        FROM unnest(
            run_queues, run_phases, run_ranks, run_places, run_segments, run_sizes, run_untils,
            run_partitions, run_consumers, run_members, run_lives
        ) WITH ORDINALITY AS new (
            queue, phase, rank, row_key, segment, size, until, partition_key, consumer, members, record,
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

-- Writes a plain publish, in one call that is a transaction of its own: segments of the log, the fresh
-- groups of their queues, and their counts. penstock_write can do the same and takes a fifth longer.
--
-- The lock is the same as in penstock_write. If the catalog has another version, nothing is written
-- and numbers is null.
--
-- Groups name their segments by their positions in the lists, from 1. If no group has a partition key,
-- the list of partition keys is null.
CREATE OR REPLACE FUNCTION penstock_publish(
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
        INSERT INTO penstock_log (tenant, published_at, entries, metadata, payloads)
        VALUES (
            of_tenant, published,
            segment_entries[ordinal], segment_heads[ordinal], segment_payloads[ordinal]
        )
        RETURNING segment INTO given;
        numbers[ordinal] := given;
    END LOOP;
    INSERT INTO penstock_run (
        queue, phase, rank, row_key, segment, size, partition_key, members, record
    )
    SELECT
        new.queue, 0, new.rank, numbers[new.segment] << 14 | new.first, numbers[new.segment],
        new.size, new.partition_key, new.members, new.record
    FROM unnest(
        run_queues, run_segments, run_ranks, run_firsts, run_sizes, run_partitions,
        run_members, run_lives
    ) AS new (queue, segment, rank, first, size, partition_key, members, record);
    -- Fresh groups are counted as available, like returned ones.
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
