-- Ids that were written down for nothing: their batch was refused.
DELETE FROM penstock_id
WHERE tenant = :tenant AND kind = :kind AND topic = :topic AND id IN (:ids)
