-- The window of a topic has changed: its ids are kept as long as it says now (P4), but for batch
-- ids with a window of their own.
UPDATE penstock_id FORCE INDEX (PRIMARY) SET until = at + :window
WHERE tenant = :tenant AND topic = :topic AND kind = :kind
    AND (kind <> 1 OR message IS NULL)
