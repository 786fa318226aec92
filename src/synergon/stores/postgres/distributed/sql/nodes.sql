-- name: orphans
SELECT id, kind, node_id, cancel_requested, attempts, crashes, errors, limit_key, group_id, is_command
FROM {schema}.task
WHERE state = 'running' AND (
    node_id = ANY ($1) OR NOT EXISTS (SELECT 1 FROM {schema}.node WHERE node.id = task.node_id)
)
ORDER BY id LIMIT $2 FOR UPDATE
