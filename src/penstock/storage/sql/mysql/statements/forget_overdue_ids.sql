-- Delete ids whose window is over (P4), the oldest first. The inner SELECT skips locked rows, which
-- a DELETE cannot, and must come first in the join.
DELETE gone
FROM (
    SELECT tenant, kind, topic, id FROM penstock_id FORCE INDEX (penstock_id_until)
    WHERE until <= :now
    ORDER BY until
    LIMIT :most
    FOR UPDATE SKIP LOCKED
) AS old
STRAIGHT_JOIN penstock_id AS gone
    ON gone.tenant = old.tenant AND gone.kind = old.kind
    AND gone.topic = old.topic AND gone.id = old.id
