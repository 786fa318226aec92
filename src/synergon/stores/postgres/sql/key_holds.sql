-- name: key_holds
SELECT hold.kind, hold.key, hold.task_id, hold.until
FROM unnest($1::text[], $2::text[]) AS name (kind, key)
JOIN {schema}.key_hold AS hold ON hold.kind = name.kind AND hold.key = name.key AND hold.until > statement_timestamp()

-- name: take_key
-- The guard is the condition of the UPDATE: it is evaluated on the row as it is after the wait for its lock.
INSERT INTO {schema}.key_hold (kind, key, task_id, until)
VALUES ($1, $2, $3, statement_timestamp() + $4::bigint * interval '1 microsecond')
ON CONFLICT (kind, key) DO UPDATE SET task_id = excluded.task_id, until = excluded.until
WHERE key_hold.until <= statement_timestamp() OR key_hold.task_id = excluded.task_id
RETURNING task_id

-- name: other_key_hold
SELECT task_id FROM {schema}.key_hold
WHERE kind = $1 AND key = $2 AND task_id <> $3 AND until > statement_timestamp()

-- name: release_key
DELETE FROM {schema}.key_hold WHERE task_id = $1

-- name: prune_key_holds
-- The outer statement repeats the condition, because a task may have taken the key after the inner one read the row.
DELETE FROM {schema}.key_hold WHERE until <= now() AND (kind, key) IN (
    SELECT kind, key FROM {schema}.key_hold WHERE until <= now() ORDER BY until LIMIT $1
)
