-- name: secret
SELECT value FROM synergon_meta WHERE name = 'secret'

-- name: make_secret
INSERT INTO synergon_meta (name, value) VALUES ('secret', ?) ON CONFLICT DO NOTHING

-- name: keep_first_secret
INSERT INTO synergon_meta (name, value) SELECT 'first_secret', value FROM synergon_meta WHERE name = 'secret'
ON CONFLICT DO NOTHING

-- name: replace_secret
UPDATE synergon_meta SET value = ? WHERE name = 'secret'

-- name: identity
SELECT value FROM synergon_meta WHERE name IN ('first_secret', 'secret') ORDER BY name LIMIT 1

-- name: register
INSERT INTO synergon_node (
    id, name, process, boot_id, kinds, queues, concurrency, version, address, registered_at, leased_until,
    lease, cordoned_at, published, published_at
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: renew
-- A renewal also writes the status of the node; NULL leaves the last status unchanged.
UPDATE synergon_node
SET leased_until = :leased_until, lease = :lease, published = coalesce(:published, published),
    published_at = CASE WHEN :published IS NULL THEN published_at ELSE :now END
WHERE id = :id

-- name: cordon
UPDATE synergon_node SET cordoned_at = coalesce(cordoned_at, :now) WHERE id = $1

-- name: uncordon
UPDATE synergon_node SET cordoned_at = NULL WHERE id = $1

-- name: lease_and_cordon
SELECT leased_until, lease, boot_id, cordoned_at FROM synergon_node WHERE id = ?

-- name: lease
SELECT id, leased_until, lease, boot_id FROM synergon_node WHERE id = $1

-- name: leases
SELECT id, leased_until, lease, boot_id FROM synergon_node

-- name: node_names
-- Includes nodes that are gone.
SELECT id, name, process FROM synergon_node WHERE id IN (SELECT value FROM json_each($1))
UNION ALL
SELECT id, name, process FROM synergon_past_node WHERE id IN (SELECT value FROM json_each($1))

-- name: keep_node_names
INSERT INTO synergon_past_node (id, name, process, gone_at)
SELECT id, name, process, :now FROM synergon_node WHERE id IN (SELECT value FROM json_each($1))
ON CONFLICT DO NOTHING

-- name: prune_node_names
DELETE FROM synergon_past_node WHERE id IN (
    SELECT id FROM synergon_past_node WHERE gone_at < :now - $1 ORDER BY gone_at LIMIT $2
)

-- name: runners
-- The nodes that run a kind and serve a queue, with their leases.
SELECT id, leased_until, lease, boot_id FROM synergon_node
WHERE CASE WHEN json_valid(CAST(kinds AS TEXT)) THEN EXISTS (
        SELECT 1 FROM json_each(CAST(kinds AS TEXT)) WHERE value = $1
    ) END
    AND CASE WHEN json_valid(CAST(queues AS TEXT)) THEN json_type(CAST(queues AS TEXT)) = 'null' OR EXISTS (
        SELECT 1 FROM json_each(CAST(queues AS TEXT)) WHERE value = $2
    ) END

-- name: unregister
DELETE FROM synergon_node WHERE id = ?

-- name: nodes
SELECT id, name, process, boot_id, kinds, queues, concurrency, version, address, registered_at, leased_until,
    lease, cordoned_at, published, published_at
FROM synergon_node ORDER BY registered_at, id

-- name: running_by_node
SELECT node_id, count(*) AS count FROM synergon_task WHERE state = 'running' GROUP BY node_id

-- name: delete_idle_nodes
DELETE FROM synergon_node WHERE id IN (SELECT value FROM json_each($1))
    AND NOT EXISTS (SELECT 1 FROM synergon_task WHERE state = 'running' AND node_id = synergon_node.id)
