-- name: queue_due
-- Waits for transactions that move some of these tasks, and does not change the tasks that they have moved.
UPDATE {schema}.task SET state = 'waiting'
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
        SELECT id FROM {schema}.task
        WHERE kind = $1 AND limit_key = $2 AND state || '' = 'scheduled' AND run_at <= $3 AND NOT is_dependent
    ))
    ORDER BY id FOR UPDATE
))
RETURNING {ChangedTask}

-- name: prune_rates
-- The outer statement repeats the condition, because a task may have started after the inner one read the row.
DELETE FROM {schema}.rate WHERE next_at < extract(epoch FROM now()) * 1000000 AND (kind, limit_key) IN (
    SELECT kind, limit_key FROM {schema}.rate
    WHERE next_at < extract(epoch FROM now()) * 1000000 ORDER BY next_at LIMIT $1
)
