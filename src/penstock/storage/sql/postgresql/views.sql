-- Read-only views for people and BI tools, and the function that they need. penstock migrate creates
-- them again after the migrations whenever this file has changed. Columns may only be added at the
-- end: views and grants of users depend on these. A migration that changes a column of a table has to
-- drop the views that read it first.

-- The MessagePack of a sealed value, without its checksum, as JSON. Handles the types that Penstock
-- writes. A NUL character, which jsonb cannot hold, becomes U+FFFD; binary data becomes hex digits;
-- NaN and the infinities become strings.
CREATE OR REPLACE FUNCTION penstock_unpack(sealed bytea) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 1000
-- As many digits as a float needs, whatever the session asks for.
SET extra_float_digits = 1 AS $$
DECLARE
    -- A copy in memory: get_byte would read a toasted value as a whole, for every byte.
    data bytea := substr(sealed, 5);
    at integer := 0;
    pieces text[] := '{}';
    piece text;
    -- The innermost open container: the values that it lacks, whether it is a map, its parents.
    lacking integer := 1;
    is_map boolean := false;
    depth integer := 0;
    outer_lacking integer[] := '{}';
    outer_map boolean[] := '{}';
    code integer;
    -- The bytes of a length or a number, and what they say.
    width integer;
    value bytea;
    number bigint;
    exponent integer;
    float double precision;
    digits numeric;
BEGIN
    LOOP
        code := get_byte(data, at);
        at := at + 1;
        IF code = 192 THEN
            piece := 'null';
        ELSIF code < 128 THEN
            piece := code;
        ELSIF code < 192 THEN
            width := 0;
            number := CASE WHEN code < 160 THEN code & 15 ELSE code & 31 END;
        ELSIF code >= 224 THEN
            piece := code - 256;
        ELSIF code IN (194, 195) THEN
            piece := code = 195;
        ELSE
            width := substr('0001240000812481248000001242424', code - 192, 1);
            IF width = 0 THEN
                RAISE EXCEPTION 'A value of the store has type % at byte %.', code, at + 3;
            END IF;
            value := substr(data, at + 1, width);
            number := ('x' || lpad(encode(value, 'hex'), 16, '0'))::bit(64)::bigint;
            at := at + width;
        END IF;
        CASE
            WHEN code < 128 OR code IN (192, 194, 195) OR code >= 224 THEN
                NULL;
            WHEN code BETWEEN 160 AND 191 OR code BETWEEN 217 AND 219 THEN
                value := substr(data, at + 1, number::integer);
                at := at + number;
                IF position('\x00'::bytea IN value) > 0 THEN
                    SELECT string_agg(
                        CASE get_byte(value, byte)
                            WHEN 0 THEN '\xefbfbd' ELSE substr(value, byte + 1, 1)
                        END,
                        '' ORDER BY byte
                    )
                    INTO value
                    FROM generate_series(0, number::integer - 1) AS byte;
                END IF;
                piece := to_json(convert_from(value, 'UTF8'));
            WHEN code < 160 OR code >= 220 THEN
                piece := CASE WHEN code < 144 OR code >= 222 THEN '{}' ELSE '[]' END;
                IF number > 0 THEN
                    depth := depth + 1;
                    outer_lacking[depth] := lacking;
                    outer_map[depth] := is_map;
                    is_map := piece = '{}';
                    lacking := CASE WHEN is_map THEN 2 * number ELSE number END;
                    pieces := pieces || left(piece, 1);
                    CONTINUE;
                END IF;
            WHEN code <= 198 THEN
                piece := to_json(encode(substr(data, at + 1, number::integer), 'hex'));
                at := at + number;
            WHEN code = 203 THEN
                exponent := (number >> 52) & 2047;
                -- Exact: an integer of 53 bits times a power of two.
                float := CASE
                    WHEN exponent = 0 THEN (number & 4503599627370495) * power(2::float8, -1074)
                    WHEN exponent < 2047 THEN
                        (number & 4503599627370495 | 4503599627370496)
                        * power(2::float8, exponent - 1075)
                    WHEN number & 4503599627370495 = 0 THEN 'Infinity'
                    ELSE 'NaN'
                END;
                IF number < 0 THEN
                    float := -float;
                END IF;
                IF exponent < 2047 THEN
                    digits := float::text;
                    -- 1.0 and not 1: a float stays one.
                    piece := round(digits, greatest(scale(digits), 1));
                ELSE
                    piece := to_json(float::text);
                END IF;
            WHEN code = 207 AND number < 0 THEN
                piece := number + 18446744073709551616;
            WHEN code IN (208, 209, 210) AND number >> (8 * width - 1) = 1 THEN
                piece := number - (1::bigint << 8 * width);
            ELSE
                piece := number;
        END CASE;
        lacking := lacking - 1;
        WHILE lacking = 0 AND depth > 0 LOOP
            piece := piece || CASE WHEN is_map THEN '}' ELSE ']' END;
            lacking := outer_lacking[depth] - 1;
            is_map := outer_map[depth];
            depth := depth - 1;
        END LOOP;
        EXIT WHEN lacking = 0;
        pieces := pieces || (piece || CASE WHEN is_map AND lacking % 2 = 1 THEN ':' ELSE ',' END);
    END LOOP;
    RETURN (array_to_string(pieces, '') || piece)::jsonb;
END
$$;

-- Epoch milliseconds as a time. In two steps, because an interval of more microseconds than a float
-- holds exactly would be rounded.
CREATE OR REPLACE FUNCTION penstock_time(at bigint) RETURNS timestamptz
LANGUAGE sql STABLE STRICT PARALLEL SAFE AS $$
    SELECT timestamptz 'epoch' + at / 1000 * interval '1 second'
        + at % 1000 * interval '1 millisecond'
$$;

-- One row per message: its newest entry, if it was replaced.
CREATE OR REPLACE VIEW penstock_messages AS
SELECT
    tenant.name AS tenant,
    entry.id,
    entry.log_offset,
    head ->> 0 AS topic,
    (head ->> 1)::smallint AS priority,
    penstock_time(entry.published_at) AS published_at,
    penstock_time(coalesce((head ->> 4)::bigint, entry.published_at)) AS deliver_at,
    penstock_time((head ->> 5)::bigint) AS expires_at,
    head ->> 7 AS key,
    head ->> 6 AS partition_key,
    head ->> 8 AS content_type,
    CASE jsonb_typeof(head -> 9) WHEN 'object' THEN head -> 9 ELSE '{}' END AS headers,
    entry.size,
    substring(log.payloads FROM entry.start + 1 FOR entry.size) AS payload,
    log.segment,
    (head ->> 12)::integer AS max_attempts
FROM penstock_log AS log
JOIN penstock_tenant AS tenant ON tenant.number = log.tenant
CROSS JOIN LATERAL (
    SELECT
        head,
        coalesce((head ->> 10)::bigint, log.segment << 14 | nth - 1) AS id,
        log.segment << 14 | nth - 1 AS log_offset,
        coalesce((head ->> 11)::bigint, log.published_at) AS published_at,
        (head ->> 2)::integer AS size,
        (sum((head ->> 2)::integer) OVER (ORDER BY nth) - (head ->> 2)::integer)::integer AS start
    FROM jsonb_array_elements(penstock_unpack(log.metadata)) WITH ORDINALITY AS heads (head, nth)
) AS entry
LEFT JOIN penstock_newest AS newest ON newest.message = entry.id AND head ->> 7 IS NOT NULL
WHERE coalesce(newest.entry, entry.id) = entry.log_offset;

-- One row per delivery, which is in one queue or in its dead-letter queue.
CREATE OR REPLACE VIEW penstock_deliveries AS
SELECT
    tenant.name AS tenant,
    queue.name AS queue,
    run.segment << 14 | member AS message_id,
    CASE
        WHEN run.phase IN (0, 1) THEN 'available'
        WHEN run.phase = 2 THEN 'delayed'
        WHEN run.phase = 3 THEN 'in_flight'
        WHEN run.phase IN (4, 14) THEN 'done'
        WHEN run.phase = 5 THEN 'expired'
        ELSE 'failed'
    END AS state,
    CASE run.phase
        WHEN 11 THEN 'available'
        WHEN 12 THEN 'delayed'
        WHEN 13 THEN 'in_flight'
        WHEN 14 THEN 'done'
    END AS dead_letter_state,
    (fields ->> 3)::integer AS attempts,
    CASE WHEN run.phase IN (0, 1, 2, 3, 13) THEN (fields ->> 4)::integer ELSE 0 END AS released,
    fields ->> 7 AS consumer,
    fields ->> 9 AS error,
    penstock_time((fields ->> 0)::bigint) AS routed_at,
    penstock_time((fields ->> 2)::bigint) AS due_at,
    penstock_time((fields ->> 1)::bigint) AS expires_at,
    penstock_time((fields ->> 6)::bigint) AS claimed_at,
    penstock_time((fields ->> 15)::bigint) AS deadline,
    penstock_time((fields ->> 8)::bigint) AS settled_at,
    fields ->> 14 AS partition_key,
    coalesce((fields ->> 12)::bigint >> 14, run.segment) AS segment
FROM penstock_run AS run
JOIN penstock_queue AS queue ON queue.number = run.queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
-- As a row of its own, or every column would unpack it again.
CROSS JOIN LATERAL penstock_unpack(run.record) AS fields
CROSS JOIN LATERAL (
    SELECT CASE
        WHEN length(run.members) = 2 THEN
            get_byte(run.members, 0) + (get_byte(run.members, 1) << 8) + nth
        ELSE get_byte(run.members, 2 * nth) + (get_byte(run.members, 2 * nth + 1) << 8)
    END AS member
    FROM generate_series(0, run.size - 1) AS nth
) AS members;

-- One row per queue. Counts are sums of the tally, so they cost the same at any depth.
CREATE OR REPLACE VIEW penstock_queues AS
SELECT
    tenant.name AS tenant,
    queue.name,
    stored.policy ->> 'filter' AS filter,
    (stored.policy ->> 'paused')::boolean AS paused,
    penstock_time(queue.created_at) AS created_at,
    queue.cursor IS NULL AS caught_up,
    counts.delayed,
    counts.available,
    counts.in_flight,
    counts.done,
    counts.failed,
    counts.expired,
    counts.dead_letters_delayed,
    counts.dead_letters_available,
    counts.dead_letters_in_flight,
    counts.dead_letters_done,
    queue.dead_paused AS dead_letters_paused,
    -- The lease is stored by its old name, which servers of older versions read.
    stored.policy - 'visibility_timeout_ms' || jsonb_build_object(
        'lease_ms',
        coalesce(stored.policy -> 'visibility_timeout_ms', stored.policy -> 'lease_ms')
    ) AS policy
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
CROSS JOIN LATERAL (
    -- An escaped NUL becomes an escaped U+FFFD. Escaped backslashes are set aside meanwhile, as a
    -- control character, which JSON does not contain.
    SELECT replace(
        replace(
            replace(convert_from(queue.policy, 'UTF8'), '\\', chr(1)), '\u0000', '\ufffd'
        ),
        chr(1), '\\'
    )::jsonb AS policy
) AS stored
CROSS JOIN LATERAL (
    SELECT
        coalesce(sum(delta) FILTER (WHERE kind = 2), 0)::bigint AS delayed,
        coalesce(sum(delta) FILTER (WHERE kind = 1), 0)::bigint AS available,
        coalesce(sum(delta) FILTER (WHERE kind = 3), 0)::bigint AS in_flight,
        coalesce(sum(delta) FILTER (WHERE kind = 4), 0)::bigint AS done,
        coalesce(sum(delta) FILTER (WHERE kind IN (11, 12, 13)), 0)::bigint AS failed,
        coalesce(sum(delta) FILTER (WHERE kind = 5), 0)::bigint AS expired,
        coalesce(sum(delta) FILTER (WHERE kind = 12), 0)::bigint AS dead_letters_delayed,
        coalesce(sum(delta) FILTER (WHERE kind = 11), 0)::bigint AS dead_letters_available,
        coalesce(sum(delta) FILTER (WHERE kind = 13), 0)::bigint AS dead_letters_in_flight,
        coalesce(sum(delta) FILTER (WHERE kind = 14), 0)::bigint AS dead_letters_done
    FROM penstock_tally
    WHERE penstock_tally.queue = queue.number
) AS counts;
