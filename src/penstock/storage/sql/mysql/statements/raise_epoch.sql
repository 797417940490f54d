-- Set the epoch of the partition that was taken last; the queue is locked.
UPDATE penstock_queue FORCE INDEX (PRIMARY) SET epoch = :epoch WHERE number = :queue
