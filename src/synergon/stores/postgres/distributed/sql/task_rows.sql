-- name: end
-- The first of two steps: copies the rows, which the caller has locked, to the history.
INSERT INTO {schema}.history (
    id, kind, queue, state, reason, priority, run_at, payload, result, attempts, max_attempts, crashes, claim_no,
    finished_no, node_id, server, key, cancel_requested, overdue, enqueued_at, started_at, finished_at, expires_at,
    overrides, tags, meta, progress, errors, limit_key, group_id, is_command, target, provider, requirements
)
SELECT
    task.id, kind, queue, $3, $4, priority, run_at, payload, outcome.result, attempts, max_attempts, crashes, claim_no,
    CASE WHEN $5 THEN claim_no ELSE finished_no END, node_id, server, key, cancel_requested, overdue, enqueued_at,
    started_at, statement_timestamp(), expires_at, overrides, tags, meta, progress, errors, limit_key, group_id,
    is_command, target, provider, requirements
FROM {schema}.task JOIN unnest($1::bigint[], $2::text[]) AS outcome (id, result) ON outcome.id = task.id
WHERE task.id = ANY ($1)

-- name: remove_ended
-- The second step: deletes the copied rows.
DELETE FROM {schema}.task WHERE id = ANY ($1)

-- name: make_due_ready
UPDATE {schema}.task SET state = CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE state || '' = 'scheduled' AND run_at <= now() AND id = ANY (ARRAY(
        SELECT id FROM {schema}.task WHERE state = 'scheduled' AND run_at <= now() ORDER BY run_at LIMIT $1
    ))
    ORDER BY id FOR UPDATE
))
RETURNING {ChangedTask}

-- name: expired
SELECT {LiveTask} FROM {schema}.task
WHERE state || '' <> 'running' AND expires_at <= now() AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE expires_at IS NOT NULL AND state <> 'running' AND expires_at <= now()
    ORDER BY expires_at LIMIT $1
))
ORDER BY id FOR UPDATE

-- name: orphans
SELECT {LiveTask} FROM {schema}.task
WHERE state = 'running' AND (
    node_id = ANY ($1) OR NOT EXISTS (SELECT 1 FROM {schema}.node WHERE node.id = task.node_id)
)
ORDER BY id LIMIT $2 FOR UPDATE
