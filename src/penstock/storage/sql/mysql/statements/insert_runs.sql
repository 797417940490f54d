-- Insert runs. A key that is taken fails the transaction: no row is ever overwritten (C1).
INSERT INTO penstock_run (
    queue, phase, `rank`, place, segment, size, until, partition_key, consumer, members, life
)
VALUES :rows
