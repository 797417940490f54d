-- The catalog: tenants, queues, topics and the limits of queues.

-- name: find_tenant
-- A tenant's number, the version of its catalog, and the schema number.
SELECT number, version, (SELECT max(number) FROM penstock_migration)
FROM penstock_tenant
WHERE name = :name

-- name: make_tenant
-- Create a tenant on first use; concurrent servers may do the same.
INSERT INTO penstock_tenant (name)
VALUES (:name)
ON CONFLICT (name) DO NOTHING

-- name: list_tenants
-- Tenants that have a queue or a topic or have ever published, by name. One lookup in the log per
-- tenant, regardless of its length.
SELECT tenant.name
FROM penstock_tenant AS tenant
WHERE tenant.trimmed IS NOT NULL
    OR EXISTS (SELECT 1 FROM penstock_queue WHERE penstock_queue.tenant = tenant.number)
    OR EXISTS (SELECT 1 FROM penstock_topic_policy AS topic WHERE topic.tenant = tenant.number)
    OR (SELECT 1 FROM penstock_log WHERE penstock_log.tenant = tenant.number LIMIT 1) IS NOT NULL
ORDER BY tenant.name

-- name: raise_version
-- Raise the version of the tenant's catalog (R1).
UPDATE penstock_tenant SET version = version + 1 WHERE number = :tenant

-- name: list_queues
-- The queues of a tenant, by name.
SELECT number, name, policy, filter_version, created_at, cursor, joining, dead_paused
FROM penstock_queue
WHERE tenant = :tenant
ORDER BY name

-- name: find_queue
-- The number of a queue.
SELECT number FROM penstock_queue WHERE tenant = :tenant AND name = :name

-- name: lock_queue
-- Lock the queue against other routers, replays and changes of partition ownership.
SELECT cursor, joining, closing, epoch FROM penstock_queue WHERE number = :queue FOR UPDATE

-- name: make_queue
-- Create a queue.
INSERT INTO penstock_queue (tenant, name, policy, created_at, cursor)
VALUES (:tenant, :name, :policy, :now, :cursor)

-- name: change_queue
-- Replace the policy of a queue.
UPDATE penstock_queue SET policy = :policy, filter_version = :filter_version
WHERE number = :queue

-- name: delete_queue
-- Delete a queue; the sweep removes its rows later.
DELETE FROM penstock_queue WHERE number = :queue

-- name: drop_queue
-- Record a deleted queue for the sweep.
INSERT INTO penstock_dropped (queue, at) VALUES (:queue, :now)

-- name: pause_dead_letters
-- Pause or resume the dead-letter queue.
UPDATE penstock_queue SET dead_paused = :paused WHERE number = :queue

-- name: read_cursor
-- The cursor of a queue (R1); null if it is caught up.
SELECT cursor
FROM penstock_queue
WHERE number = :queue

-- name: move_cursor
-- Set the routing state of a queue (R1).
UPDATE penstock_queue SET cursor = :cursor, joining = :joining, closing = :closing
WHERE number = :queue

-- name: list_behind
-- Queues that must be caught up (R1) or backfilled, by the names of tenant and queue.
SELECT penstock_tenant.name, penstock_queue.name
FROM penstock_queue
JOIN penstock_tenant ON penstock_tenant.number = penstock_queue.tenant
WHERE penstock_queue.cursor IS NOT NULL OR penstock_queue.joining IS NOT NULL
ORDER BY penstock_tenant.name, penstock_queue.name

-- name: list_topics
-- The registered topics of a tenant, by name.
SELECT name, policy
FROM penstock_topic_policy
WHERE tenant = :tenant
ORDER BY name

-- name: put_topic
-- Register a topic, or replace its policy.
INSERT INTO penstock_topic_policy (tenant, name, policy) VALUES (:tenant, :name, :policy)
ON CONFLICT (tenant, name) DO UPDATE SET policy = excluded.policy

-- name: delete_topic
-- Delete a topic.
DELETE FROM penstock_topic_policy WHERE tenant = :tenant AND name = :name

-- name: lock_limit
-- Lock a limit of a queue against all other transactions, on all servers.
SELECT rate, milli_tokens, filled_at FROM penstock_limit
WHERE queue = :queue AND kind = :kind
FOR UPDATE

-- name: read_limit
-- What is left of a limit of a queue.
SELECT rate, milli_tokens, filled_at FROM penstock_limit
WHERE queue = :queue AND kind = :kind

-- name: put_limit
-- Insert a limit of a queue, unless it exists.
INSERT INTO penstock_limit (queue, kind, rate, milli_tokens, filled_at)
VALUES (:queue, :kind, :rate, :milli_tokens, :filled_at)
ON CONFLICT (queue, kind) DO NOTHING

-- name: charge_limit
-- Write what is left of a limit of a queue.
UPDATE penstock_limit
SET rate = :rate, milli_tokens = :milli_tokens, filled_at = :filled_at
WHERE queue = :queue AND kind = :kind

-- name: clear_limits
-- Remove the limits of a deleted queue.
DELETE FROM penstock_limit WHERE queue = :queue
