-- Lock these segments that are still in the log, so that they stay until this transaction ends: see
-- retention. Called before adding deliveries of old entries, with the segments of the messages and of
-- their newest entries; only messages that still have their newest entry may be added (G1).
SELECT segment FROM penstock_log FORCE INDEX (PRIMARY)
WHERE segment IN (:numbers)
ORDER BY segment
LOCK IN SHARE MODE
