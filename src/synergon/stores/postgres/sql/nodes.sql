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
    published_at = CASE WHEN $3::text IS NULL THEN published_at ELSE now() END
WHERE id = $1

-- name: unregister
DELETE FROM {schema}.node WHERE id = $1

-- name: nodes
-- Uses the current time, not that of the transaction: a renewal may commit between the start of this transaction and
-- its snapshot, and more than a whole lease would remain.
SELECT id, name, process, kinds, queues, concurrency, version, address, registered_at, cordoned_at,
    published, extract(epoch FROM leased_until - clock_timestamp())::float8 AS lease_remaining,
    extract(epoch FROM clock_timestamp() - published_at)::float8 AS published_ago
FROM {schema}.node ORDER BY registered_at, id

-- name: node_names
-- Includes nodes that are gone.
SELECT id, name, process FROM {schema}.node WHERE id = ANY ($1)
UNION ALL
SELECT id, name, process FROM {schema}.past_node WHERE id = ANY ($1)

-- name: keep_node_names
INSERT INTO {schema}.past_node (id, name, process, gone_at)
SELECT id, name, process, now() FROM {schema}.node WHERE id = ANY ($1)
ON CONFLICT DO NOTHING

-- name: prune_node_names
DELETE FROM {schema}.past_node WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.past_node WHERE gone_at < now() - $1::bigint * interval '1 microsecond'
    ORDER BY gone_at LIMIT $2
))

-- name: runners
-- The nodes with a live lease that run a kind and serve a queue.
SELECT id FROM {schema}.node
WHERE leased_until > now() AND $1::text = ANY (kinds) AND (queues IS NULL OR $2::text = ANY (queues))

-- name: running_by_node
SELECT node_id, count(*) AS count FROM {schema}.task WHERE state = 'running' GROUP BY node_id

-- name: has_dead_nodes
-- Whether there is a dead node, or a running task whose node has no row.
SELECT EXISTS (SELECT 1 FROM {schema}.node WHERE leased_until <= now() OR id = ANY ($1)) OR EXISTS (
    SELECT 1 FROM {schema}.task
    WHERE state = 'running' AND NOT EXISTS (SELECT 1 FROM {schema}.node WHERE node.id = task.node_id)
)

-- name: dead_lock_targets
-- The key queues and groups of tasks of dead nodes. The caller locks them next.
SELECT id, kind, limit_key, group_id, has_dependents FROM {schema}.task
WHERE state = 'running' AND (
    node_id IN (SELECT id FROM {schema}.node WHERE leased_until <= now() OR id = ANY ($1))
    OR NOT EXISTS (SELECT 1 FROM {schema}.node WHERE node.id = task.node_id)
)
ORDER BY id LIMIT $2

-- name: lock_dead
-- Locks the dead nodes, so that none of them renews its lease before its tasks are taken.
SELECT id FROM {schema}.node WHERE leased_until <= now() OR id = ANY ($1) ORDER BY id FOR UPDATE

-- name: delete_idle_nodes
DELETE FROM {schema}.node WHERE id = ANY ($1)
    AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE state = 'running' AND node_id = node.id)
