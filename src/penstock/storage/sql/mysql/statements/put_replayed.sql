-- What a replay id has moved. Whoever replays holds the queue, so nobody else writes it down.
INSERT INTO penstock_replayed (queue, dead, replay_id, message)
VALUES :rows
