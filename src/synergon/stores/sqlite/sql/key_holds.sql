-- name: key_holds
-- $1 is a list of pairs [kind, key].
SELECT hold.kind, hold.key, hold.task_id, hold.until FROM json_each($1) AS name CROSS JOIN synergon_key_hold AS hold
WHERE hold.kind = json_extract(name.value, '$[0]') AND hold.key = json_extract(name.value, '$[1]') AND hold.until > :now

-- name: key_hold
SELECT task_id FROM synergon_key_hold WHERE kind = ? AND key = ? AND until > ?

-- name: take_key
INSERT INTO synergon_key_hold (kind, key, task_id, until) VALUES ($1, $2, $3, :now + $4)
ON CONFLICT (kind, key) DO UPDATE SET task_id = excluded.task_id, until = excluded.until
WHERE synergon_key_hold.until <= :now OR synergon_key_hold.task_id = excluded.task_id
RETURNING task_id

-- name: other_key_hold
SELECT task_id FROM synergon_key_hold WHERE kind = $1 AND key = $2 AND task_id <> $3 AND until > :now

-- name: release_key
DELETE FROM synergon_key_hold WHERE task_id = $1

-- name: prune_key_holds
DELETE FROM synergon_key_hold WHERE (kind, key) IN (
    SELECT kind, key FROM synergon_key_hold WHERE until <= :now ORDER BY until LIMIT $1
)
