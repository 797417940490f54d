-- Delete runs, put runs, count, and say which version the catalog has, in one go (S3, Q2, R1).
WITH gone AS (
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
    SELECT * FROM unnest(
        $6::integer[], $7::smallint[], $8::smallint[], $9::bigint[], $10::bigint[],
        $11::integer[], $12::bigint[], $13::bytea[], $14::text[], $15::bytea[], $16::bytea[]
    )
    ON CONFLICT (queue, phase, rank, place) DO UPDATE SET
        segment = excluded.segment, size = excluded.size, until = excluded.until,
        partition_key = excluded.partition_key, consumer = excluded.consumer,
        members = excluded.members, life = excluded.life
),
counted AS (
    INSERT INTO penstock_tally (queue, kind, delta)
    SELECT * FROM unnest($17::integer[], $18::smallint[], $19::bigint[])
)
SELECT version FROM penstock_tenant WHERE number = $1
