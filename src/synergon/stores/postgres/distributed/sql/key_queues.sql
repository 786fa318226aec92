-- name: demote
-- Waits for a concurrent claim, and does not change the tasks that it has taken.
UPDATE {schema}.task SET state = 'waiting', reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'ready' ORDER BY id FOR UPDATE
))
RETURNING id, kind, state, limit_key, group_id

-- name: queue_due
-- Waits for a transaction that moves one of these tasks, and does not change that task.
UPDATE {schema}.task SET state = 'waiting'
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
        SELECT id FROM {schema}.task
        WHERE kind = $1 AND limit_key = $2 AND state || '' = 'scheduled' AND run_at <= $3
    ))
    ORDER BY id FOR UPDATE
))
RETURNING id, kind, state, limit_key, group_id

-- name: prune_rates
-- The condition is repeated, because a task may have started since the search.
DELETE FROM {schema}.rate WHERE next_at < extract(epoch FROM now()) * 1000000 AND (kind, limit_key) IN (
    SELECT kind, limit_key FROM {schema}.rate
    WHERE next_at < extract(epoch FROM now()) * 1000000 ORDER BY next_at LIMIT $1
)
