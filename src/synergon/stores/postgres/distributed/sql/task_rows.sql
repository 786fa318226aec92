-- name: end
-- The first of two steps: copies the rows, which the caller has locked, to the history.
INSERT INTO {schema}.history ({carried}, state, reason, finished_no, finished_at, result)
SELECT {carried}, $3, $4, CASE WHEN $5 THEN claim_no ELSE finished_no END, statement_timestamp(), outcome.result
FROM {schema}.task JOIN unnest($1::bigint[], $2::text[]) AS outcome (task_id, result) ON task_id = id
WHERE id = ANY ($1)

-- name: succeed_together
-- Removed: a statement here may change only one table.

-- name: remove_ended
-- The second step: deletes the copied rows.
DELETE FROM {schema}.task WHERE id = ANY ($1)

-- name: make_due_ready
UPDATE {schema}.task SET state = CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE state || '' = 'scheduled' AND run_at <= now() AND id = ANY (ARRAY(
        SELECT id FROM {schema}.task WHERE state = 'scheduled' AND run_at <= now() AND NOT is_dependent
        ORDER BY run_at LIMIT $1
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
