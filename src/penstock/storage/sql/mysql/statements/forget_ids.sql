-- Delete ids whose batch was refused.
DELETE gone
FROM (SELECT CAST(:ids AS BINARY) AS id) AS old
STRAIGHT_JOIN penstock_id AS gone FORCE INDEX (PRIMARY)
    ON gone.tenant = :tenant AND gone.kind = :kind AND gone.topic = :topic AND gone.id = old.id
