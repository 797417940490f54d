-- What a plain publish writes, in one call that is a transaction of its own: segments of the log, the
-- runs of their queues, which are fresh, and how many that is. penstock_write can do the same, and
-- takes a fifth longer.

-- A shared lock names the last segment given out, until the transaction ends: what is appended is
-- above it, and readers stay below (L2). The statement after that sees what was committed before it,
-- so a statement that sees the old catalog already has the lock. Of another version of the catalog
-- nothing is written, and numbers is null.
--
-- Runs name their segments by their positions in the lists, the first is 1.
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
END
$$;
