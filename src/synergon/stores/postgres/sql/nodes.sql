-- name: register
INSERT INTO {schema}.node (
    id, name, process, kinds, queues, concurrency, version, address, registered_at, leased_until, cordoned_at,
    published, published_at
) VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8, now(), now() + $9::bigint * interval '1 microsecond',
    CASE WHEN $10::boolean THEN now() END, $11, now()
)

-- name: renew
UPDATE {schema}.node
SET leased_until = now() + $2::bigint * interval '1 microsecond', published = coalesce($3::text, published),
    published_at = CASE WHEN $3::text IS NULL THEN published_at ELSE now() END, is_stopping = is_stopping OR $4
WHERE id = $1

-- name: unregister
DELETE FROM {schema}.node WHERE id = $1

-- name: nodes
SELECT node.*, extract(epoch FROM leased_until - now())::float8 AS lease_remaining,
    extract(epoch FROM now() - published_at)::float8 AS published_ago
FROM {schema}.node ORDER BY registered_at, id

-- name: running_by_node
SELECT node_id, count(*) FROM {schema}.task WHERE state = 'running' GROUP BY node_id

-- name: has_dead_nodes
-- Whether there is a dead node, or a running task without a node.
SELECT EXISTS (SELECT 1 FROM {schema}.node WHERE leased_until <= now() OR id = ANY ($1)) OR EXISTS (
    SELECT 1 FROM {schema}.task
    WHERE state = 'running' AND NOT EXISTS (SELECT 1 FROM {schema}.node WHERE node.id = task.node_id)
)

-- name: dead_lock_targets
-- The key queues and groups of tasks of dead nodes, which the caller locks next.
SELECT kind, limit_key, group_id, after_group FROM {schema}.task
WHERE state = 'running' AND (
    node_id IN (SELECT id FROM {schema}.node WHERE leased_until <= now() OR id = ANY ($1))
    OR NOT EXISTS (SELECT 1 FROM {schema}.node WHERE node.id = task.node_id)
)
ORDER BY id LIMIT $2

-- name: lock_dead
-- Locked, so that none of them renews its lease before its tasks are taken.
SELECT id, is_stopping FROM {schema}.node WHERE leased_until <= now() OR id = ANY ($1) ORDER BY id FOR UPDATE

-- name: delete_idle_nodes
DELETE FROM {schema}.node WHERE id = ANY ($1)
    AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE state = 'running' AND node_id = node.id)
