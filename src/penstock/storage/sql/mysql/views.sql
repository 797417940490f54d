-- Read-only views for people and BI tools, and the functions that they need. penstock migrate creates
-- them again after the migrations whenever this file has changed. Columns may only be added at the
-- end. A migration that changes a column of a table has to drop the views that read it first.
--
-- The dollar signs in comments tell penstock migrate where a function's body begins and ends.

DROP FUNCTION IF EXISTS penstock_unpack;
DROP FUNCTION IF EXISTS penstock_members;

-- The MessagePack of a sealed value, without its checksum, as JSON. Handles the types that Penstock
-- writes. A NUL character becomes U+FFFD, as on PostgreSQL; binary data becomes hex digits; NaN and
-- the infinities become strings. Functions cannot be recursive, so the open containers are on a stack.
--
-- If summed is not null, the value is an array of arrays. Each inner array then begins with a sum: of
-- the elements at index summed of all inner arrays before it.
CREATE FUNCTION penstock_unpack(sealed LONGBLOB, summed INT)
RETURNS LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DETERMINISTIC NO SQL
/* $$ */
BEGIN
    DECLARE at BIGINT DEFAULT 5;
    -- Appending to a long text copies it, so pieces are collected in a short one first.
    DECLARE unpacked LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT '';
    DECLARE recent LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT '';
    DECLARE piece LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
    -- The innermost open container: the values that it lacks, and whether it is a map. The stack has
    -- 11 characters for each of the others.
    DECLARE lacking BIGINT DEFAULT 1;
    DECLARE is_map BOOLEAN DEFAULT FALSE;
    DECLARE stack LONGTEXT CHARACTER SET ascii DEFAULT '';
    DECLARE code, width, exponent INT;
    DECLARE number, fraction BIGINT UNSIGNED;
    DECLARE value LONGBLOB;
    DECLARE real_number DOUBLE;
    DECLARE total BIGINT DEFAULT 0;
    -- How many values the inner array lacks at the one to sum.
    DECLARE sum_at BIGINT DEFAULT -1;
    each_value: LOOP
        SET code = ORD(SUBSTRING(sealed, at, 1));
        SET at = at + 1;
        IF code = 192 THEN
            SET piece = 'null';
        ELSEIF code < 128 THEN
            SET piece = code;
        ELSEIF code >= 224 THEN
            SET piece = code - 256;
        ELSEIF code IN (194, 195) THEN
            SET piece = IF(code = 195, 'true', 'false');
        ELSE
            IF code < 192 THEN
                SET number = IF(code < 160, code & 15, code & 31);
            ELSE
                SET width = SUBSTRING('0001240000812481248000001242424', code - 192, 1);
                IF width = 0 THEN
                    SIGNAL SQLSTATE '45000'
                    SET MESSAGE_TEXT = 'A value of the store has an unknown type.';
                END IF;
                SET number = CONV(HEX(SUBSTRING(sealed, at, width)), 16, 10);
                SET at = at + width;
            END IF;
            CASE
                WHEN code BETWEEN 204 AND 207 THEN
                    SET piece = number;
                WHEN code BETWEEN 160 AND 191 OR code BETWEEN 217 AND 219 THEN
                    SET value = REPLACE(SUBSTRING(sealed, at, number), 0x00, 0xEFBFBD);
                    SET piece = JSON_QUOTE(CONVERT(value USING utf8mb4));
                    SET at = at + number;
                WHEN code < 160 OR code >= 220 THEN
                    SET piece = IF(code < 144 OR code >= 222, '{}', '[]');
                    IF number > 0 THEN
                        SET stack = CONCAT(stack, is_map, LPAD(lacking, 10, '0'));
                        SET is_map = piece = '{}';
                        SET lacking = IF(is_map, 2 * number, number);
                        SET recent = CONCAT(recent, LEFT(piece, 1));
                        IF summed IS NOT NULL AND LENGTH(stack) = 22 THEN
                            SET recent = CONCAT(recent, total, ',');
                            SET sum_at = lacking - summed;
                        END IF;
                        ITERATE each_value;
                    END IF;
                WHEN code <= 198 THEN
                    SET piece = CONCAT('"', LOWER(HEX(SUBSTRING(sealed, at, number))), '"');
                    SET at = at + number;
                WHEN code = 203 THEN
                    SET exponent = (number >> 52) & 2047;
                    SET fraction = number & 4503599627370495;
                    IF exponent = 2047 THEN
                        SET piece = CASE
                            WHEN fraction > 0 THEN '"NaN"'
                            WHEN number >> 63 THEN '"-Infinity"'
                            ELSE '"Infinity"'
                        END;
                    ELSE
                        -- Exact: an integer of 53 bits times a power of two.
                        IF exponent = 0 THEN
                            SET real_number = fraction * POW(2, -1074);
                        ELSE
                            SET real_number =
                                (fraction | 4503599627370496) * POW(2, exponent - 1075);
                        END IF;
                        -- 1.0 and not 1: a float stays one.
                        SET piece = CONCAT(
                            IF(number >> 63, '-', ''),
                            real_number,
                            IF(CONCAT(real_number) REGEXP '[.e]', '', '.0')
                        );
                    END IF;
                WHEN code BETWEEN 208 AND 211 AND number >> (8 * width - 1) = 1 THEN
                    SET piece = CONCAT('-', (~number & (~0 >> (64 - 8 * width))) + 1);
                ELSE
                    SET piece = number;
            END CASE;
        END IF;
        IF lacking = sum_at THEN
            SET total = total + CAST(piece AS UNSIGNED);
            SET sum_at = -1;
        END IF;
        SET lacking = lacking - 1;
        IF LENGTH(recent) > 4000 THEN
            SET unpacked = CONCAT(unpacked, recent);
            SET recent = '';
        END IF;
        IF lacking = 0 THEN
            WHILE lacking = 0 AND stack <> '' DO
                SET piece = CONCAT(piece, IF(is_map, '}', ']'));
                SET is_map = SUBSTRING(stack, -11, 1);
                SET lacking = SUBSTRING(stack, -10) - 1;
                SET stack = LEFT(stack, LENGTH(stack) - 11);
            END WHILE;
            IF lacking = 0 THEN
                LEAVE each_value;
            END IF;
        END IF;
        SET recent = CONCAT(recent, piece, IF(is_map AND lacking % 2 = 1, ':', ','));
    END LOOP;
    SET unpacked = CONCAT(unpacked, recent, piece);
    IF unpacked IS NULL THEN
        SIGNAL SQLSTATE '45000'
        SET MESSAGE_TEXT = 'A value of the store is larger than max_allowed_packet as JSON.';
    END IF;
    RETURN unpacked;
END
/* $$ */;

-- The indices of a run's members as a JSON array. They are 16-bit numbers, or only the first if they
-- are consecutive.
CREATE FUNCTION penstock_members(members MEDIUMBLOB, size INT)
RETURNS LONGTEXT CHARACTER SET ascii DETERMINISTIC NO SQL
/* $$ */
BEGIN
    DECLARE nth INT DEFAULT 0;
    DECLARE first INT DEFAULT ORD(SUBSTRING(members, 1, 1)) + 256 * ORD(SUBSTRING(members, 2, 1));
    DECLARE found LONGTEXT CHARACTER SET ascii DEFAULT first;
    DECLARE consecutive BOOLEAN DEFAULT LENGTH(members) = 2;
    WHILE nth < size - 1 DO
        SET nth = nth + 1;
        SET found = CONCAT(found, ',', IF(
            consecutive,
            first + nth,
            ORD(SUBSTRING(members, 2 * nth + 1, 1)) + 256 * ORD(SUBSTRING(members, 2 * nth + 2, 1))
        ));
    END WHILE;
    RETURN CONCAT('[', found, ']');
END
/* $$ */;

-- One row per message: its newest entry, if it was replaced.
CREATE OR REPLACE VIEW penstock_messages AS
SELECT
    tenant.name AS tenant,
    COALESCE(entry.id, CAST(log.segment << 14 | entry.nth - 1 AS SIGNED)) AS id,
    CAST(log.segment << 14 | entry.nth - 1 AS SIGNED) AS log_offset,
    entry.topic,
    entry.priority,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00'
        + INTERVAL 1000 * COALESCE(entry.published_at, log.published_at) MICROSECOND AS DATETIME(3)
    ) AS published_at,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00'
        + INTERVAL 1000 * COALESCE(entry.deliver_at, entry.published_at, log.published_at) MICROSECOND
        AS DATETIME(3)
    ) AS deliver_at,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * entry.expires_at MICROSECOND AS DATETIME(3)
    ) AS expires_at,
    entry.`key`,
    entry.partition_key,
    entry.content_type,
    IF(JSON_TYPE(entry.headers) = 'OBJECT', entry.headers, JSON_OBJECT()) AS headers,
    entry.size,
    SUBSTRING(log.payloads, entry.start + 1, entry.size) AS payload,
    log.segment,
    entry.max_attempts
FROM penstock_log AS log
JOIN penstock_tenant AS tenant ON tenant.number = log.tenant
CROSS JOIN JSON_TABLE(
    penstock_unpack(log.metadata, 2),
    '$[*]' COLUMNS (
        nth FOR ORDINALITY,
        start BIGINT PATH '$[0]',
        topic VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[1]',
        priority SMALLINT PATH '$[2]',
        size INT PATH '$[3]',
        deliver_at BIGINT PATH '$[5]',
        expires_at BIGINT PATH '$[6]',
        partition_key VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[7]',
        `key` VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[8]',
        content_type VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[9]',
        headers JSON PATH '$[10]',
        id BIGINT PATH '$[11]',
        published_at BIGINT PATH '$[12]',
        max_attempts INT PATH '$[13]'
    )
) AS entry
LEFT JOIN penstock_newest AS newest
    ON newest.message = COALESCE(entry.id, CAST(log.segment << 14 | entry.nth - 1 AS SIGNED))
    AND entry.`key` IS NOT NULL
WHERE COALESCE(newest.entry, entry.id, CAST(log.segment << 14 | entry.nth - 1 AS SIGNED))
    = CAST(log.segment << 14 | entry.nth - 1 AS SIGNED);

-- One row per delivery, which is in one queue or in its dead-letter queue.
CREATE OR REPLACE VIEW penstock_deliveries AS
SELECT
    tenant.name AS tenant,
    queue.name AS queue,
    CAST(run.segment << 14 | item.nth AS SIGNED) AS message_id,
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
    record.attempts,
    IF(run.phase IN (0, 1, 2, 3, 13), record.released, 0) AS released,
    record.consumer,
    record.error,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * record.routed_at MICROSECOND AS DATETIME(3)
    ) AS routed_at,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * record.due_at MICROSECOND AS DATETIME(3)
    ) AS due_at,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * record.expires_at MICROSECOND AS DATETIME(3)
    ) AS expires_at,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * record.claimed_at MICROSECOND AS DATETIME(3)
    ) AS claimed_at,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * record.deadline MICROSECOND AS DATETIME(3)
    ) AS deadline,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * record.settled_at MICROSECOND AS DATETIME(3)
    ) AS settled_at,
    record.partition_key,
    COALESCE(CAST(record.entry >> 14 AS SIGNED), run.segment) AS segment
FROM penstock_run AS run
JOIN penstock_queue AS queue ON queue.number = run.queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
CROSS JOIN JSON_TABLE(
    penstock_unpack(run.record, NULL),
    '$' COLUMNS (
        routed_at BIGINT PATH '$[0]',
        expires_at BIGINT PATH '$[1]',
        due_at BIGINT PATH '$[2]',
        attempts INT PATH '$[3]',
        released INT PATH '$[4]',
        claimed_at BIGINT PATH '$[6]',
        consumer VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[7]',
        settled_at BIGINT PATH '$[8]',
        error VARCHAR(8192) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[9]',
        entry BIGINT PATH '$[12]',
        partition_key VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$[14]',
        deadline BIGINT PATH '$[15]'
    )
) AS record
CROSS JOIN JSON_TABLE(
    penstock_members(run.members, run.size), '$[*]' COLUMNS (nth INT PATH '$')
) AS item;

-- One row per queue. Counts are sums of the tally, so they cost the same at any depth.
CREATE OR REPLACE VIEW penstock_queues AS
SELECT
    tenant.name AS tenant,
    queue.name,
    stored.filter,
    stored.paused,
    CAST(
        TIMESTAMP '1970-01-01 00:00:00' + INTERVAL 1000 * queue.created_at MICROSECOND AS DATETIME(3)
    ) AS created_at,
    queue.`cursor` IS NULL AS caught_up,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 2
    ) AS `delayed`,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 1
    ) AS available,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 3
    ) AS in_flight,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 4
    ) AS done,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind IN (11, 12, 13)
    ) AS failed,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 5
    ) AS expired,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 12
    ) AS dead_letters_delayed,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 11
    ) AS dead_letters_available,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 13
    ) AS dead_letters_in_flight,
    (
        SELECT CAST(COALESCE(SUM(delta), 0) AS SIGNED) FROM penstock_tally AS tally
        WHERE tally.queue = queue.number AND tally.kind = 14
    ) AS dead_letters_done,
    queue.dead_paused AS dead_letters_paused,
    -- The lease is stored by its old name, which servers of older versions read.
    JSON_REMOVE(
        JSON_SET(stored.policy, '$.lease_ms', COALESCE(stored.old_lease_ms, stored.lease_ms)),
        '$.visibility_timeout_ms'
    ) AS policy
FROM penstock_queue AS queue
JOIN penstock_tenant AS tenant ON tenant.number = queue.tenant
CROSS JOIN JSON_TABLE(
    -- An escaped NUL becomes an escaped U+FFFD. Escaped backslashes are set aside meanwhile, as a
    -- control character, which JSON does not contain.
    CONVERT(
        REPLACE(
            REPLACE(REPLACE(queue.policy, 0x5C5C, 0x01), 0x5C7530303030, 0x5C7566666664), 0x01, 0x5C5C
        )
        USING utf8mb4
    ),
    '$' COLUMNS (
        filter VARCHAR(4096) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PATH '$.filter',
        paused BOOLEAN PATH '$.paused',
        old_lease_ms BIGINT PATH '$.visibility_timeout_ms',
        lease_ms BIGINT PATH '$.lease_ms',
        policy JSON PATH '$'
    )
) AS stored;
