-- Pause or resume the dead-letter queue.
UPDATE penstock_queue SET dead_paused = :paused WHERE number = :queue
