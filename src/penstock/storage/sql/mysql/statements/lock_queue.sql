-- Lock the queue against other routers, replays and changes of partition ownership.
SELECT `cursor`, joining, closing, epoch FROM penstock_queue WHERE number = :queue FOR UPDATE
