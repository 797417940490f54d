-- Pause or resume the dead-letter queue.
UPDATE penstock_queue FORCE INDEX (PRIMARY) SET dead_paused = :paused WHERE number = :queue
