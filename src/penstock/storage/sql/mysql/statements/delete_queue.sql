-- Delete a queue; the sweep removes its rows later.
DELETE FROM penstock_queue WHERE number = :queue
