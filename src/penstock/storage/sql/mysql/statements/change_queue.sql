-- Replace the policy of a queue.
UPDATE penstock_queue FORCE INDEX (PRIMARY) SET policy = :policy, filter_version = :filter_version
WHERE number = :queue
