-- name: key_holds
-- The first parameter is a list of pairs [kind, key].
SELECT hold.kind, hold.key, hold.task_id, hold.until FROM json_each(?) AS name CROSS JOIN synergon_key_hold AS hold
WHERE hold.kind = json_extract(name.value, '$[0]') AND hold.key = json_extract(name.value, '$[1]') AND hold.until > ?

-- name: key_hold
SELECT task_id FROM synergon_key_hold WHERE kind = ? AND key = ? AND until > ?

-- name: take_key
INSERT INTO synergon_key_hold (kind, key, task_id, until) VALUES (:kind, :key, :task_id, :until)
ON CONFLICT (kind, key) DO UPDATE SET task_id = excluded.task_id, until = excluded.until
WHERE synergon_key_hold.until <= :now OR synergon_key_hold.task_id = excluded.task_id

-- name: release_key
DELETE FROM synergon_key_hold WHERE task_id = ?

-- name: prune_key_holds
DELETE FROM synergon_key_hold WHERE (kind, key) IN (
    SELECT kind, key FROM synergon_key_hold WHERE until <= ? ORDER BY until LIMIT ?
)
