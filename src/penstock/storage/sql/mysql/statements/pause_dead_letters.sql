-- Stop or resume handing out dead letters.
UPDATE penstock_queue FORCE INDEX (PRIMARY) SET dead_paused = :paused WHERE number = :queue
