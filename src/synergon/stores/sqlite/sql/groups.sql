-- name: add_group
INSERT INTO synergon_group (id, name, created_at) VALUES (?, ?, ?)

-- name: open_groups
SELECT id FROM synergon_group WHERE id IN (SELECT value FROM json_each(?)) AND ended_at IS NULL

-- name: end_empty_groups
UPDATE synergon_group SET ended_at = ?
WHERE id IN (SELECT value FROM json_each(?)) AND ended_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.group_id = synergon_group.id)
RETURNING id

-- name: release_followers
UPDATE synergon_task
SET after_group = NULL,
    state = CASE WHEN run_at > ? THEN 'scheduled' WHEN limit_key IS NOT NULL THEN 'waiting' ELSE 'ready' END
WHERE after_group IN (SELECT value FROM json_each(?))
RETURNING id, kind, state, limit_key, group_id

-- name: set_then
UPDATE synergon_group SET then_id = ? WHERE id = ?

-- name: groups
SELECT id, name, created_at, ended_at, then_id FROM synergon_group WHERE id IN (SELECT value FROM json_each(?))

-- name: group_counts
SELECT group_id, state, count(*) AS count FROM synergon_task
WHERE group_id IN (SELECT value FROM json_each(:ids)) GROUP BY group_id, state
UNION ALL
SELECT group_id, state, count(*) FROM synergon_history
WHERE group_id IN (SELECT value FROM json_each(:ids)) GROUP BY group_id, state

-- name: live_tasks_of_group
SELECT id FROM synergon_task WHERE group_id = ? ORDER BY id

-- name: prune_groups
-- Deletes groups that have ended and have no task, live or final. The task that follows a group counts, too.
DELETE FROM synergon_group WHERE id IN (
    SELECT id FROM synergon_group AS ended
    WHERE ended_at IS NOT NULL AND ended_at < ?
        AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.group_id = ended.id)
        AND NOT EXISTS (SELECT 1 FROM synergon_history AS task WHERE task.group_id = ended.id)
        AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.id = ended.then_id)
        AND NOT EXISTS (SELECT 1 FROM synergon_history AS task WHERE task.id = ended.then_id)
    ORDER BY ended_at LIMIT ?
)
