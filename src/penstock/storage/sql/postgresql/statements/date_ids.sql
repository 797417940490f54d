-- Set the expiry of a topic's ids after its window changed (P4), except for batch ids with their
-- own window.
UPDATE penstock_id SET until = at + :window WHERE tenant = :tenant AND topic = :topic
    AND kind = :kind AND (kind <> 1 OR message IS NULL)
