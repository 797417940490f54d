-- Stop or resume handing out dead letters.
UPDATE penstock_queue SET dead_paused = :paused WHERE number = :queue
