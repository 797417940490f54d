-- Replace runs that this transaction has locked (S3).
INSERT INTO penstock_run (
    queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
)
VALUES :rows
ON DUPLICATE KEY UPDATE
    segment = VALUES(segment), size = VALUES(size), until = VALUES(until),
    partition_key = VALUES(partition_key), consumer = VALUES(consumer),
    members = VALUES(members), life = VALUES(life)
