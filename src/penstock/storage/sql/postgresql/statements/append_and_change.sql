-- Append segments, and what change does: runs of them name the first -1, the second -2 (L1, S3).
WITH appended AS (
    INSERT INTO penstock_log (tenant, published_at, entries, heads, payloads)
    SELECT tenant, published_at, entries, heads, payloads
    FROM unnest($20::integer[], $21::bigint[], $22::integer[], $23::bytea[], $24::bytea[])
        WITH ORDINALITY AS new (tenant, published_at, entries, heads, payloads, ordinal)
    ORDER BY ordinal
    RETURNING segment
),
numbered AS (
    SELECT segment, row_number() OVER (ORDER BY segment) AS ordinal FROM appended
),
gone AS (
    DELETE FROM penstock_run AS run
    USING unnest($2::integer[], $3::smallint[], $4::smallint[], $5::bigint[])
        AS old (queue, phase, rank, place)
    WHERE run.queue = old.queue AND run.phase = old.phase
        AND run.rank = old.rank AND run.place = old.place
),
put AS (
    INSERT INTO penstock_run AS run (
        queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    )
    SELECT
        new.queue, new.phase, new.rank,
        CASE
            WHEN new.segment < 0 THEN numbered.segment << 14 | (new.place & 16383)
            ELSE new.place
        END,
        coalesce(numbered.segment, new.segment),
        new.size, new.until, new.partition_key, new.consumer, new.members, new.life
    FROM unnest(
        $6::integer[], $7::smallint[], $8::smallint[], $9::bigint[], $10::bigint[],
        $11::integer[], $12::bigint[], $13::bytea[], $14::text[], $15::bytea[], $16::bytea[]
    ) AS new (
        queue, phase, rank, place, segment, size, until, partition_key, consumer, members, life
    )
    LEFT JOIN numbered ON numbered.ordinal = -new.segment
    ON CONFLICT (queue, phase, rank, place) DO UPDATE SET
        segment = excluded.segment, size = excluded.size, until = excluded.until,
        partition_key = excluded.partition_key, consumer = excluded.consumer,
        members = excluded.members, life = excluded.life
),
counted AS (
    INSERT INTO penstock_tally (queue, kind, delta)
    SELECT * FROM unnest($17::integer[], $18::smallint[], $19::bigint[])
)
SELECT
    (SELECT version FROM penstock_tenant WHERE number = $1),
    (SELECT array_agg(segment ORDER BY segment) FROM numbered)
