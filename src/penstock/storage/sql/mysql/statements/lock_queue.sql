-- Lock the queue: whoever adds to it what is not there, or moves its partitions, goes alone.
SELECT `cursor`, joining, closing, epoch FROM penstock_queue WHERE number = :queue FOR UPDATE
