-- name: add_group
INSERT INTO synergon_group (id, name, created_at, is_flow) VALUES (?, ?, ?, ?)

-- name: end_empty_groups
UPDATE synergon_group SET ended_at = ?, state = CASE
    WHEN EXISTS (SELECT 1 FROM synergon_history AS task WHERE task.group_id = synergon_group.id AND task.state = 'failed')
        THEN 'failed'
    WHEN EXISTS (SELECT 1 FROM synergon_history AS task WHERE task.group_id = synergon_group.id AND task.state = 'cancelled')
        THEN 'cancelled'
    ELSE 'succeeded'
END
WHERE id IN (SELECT value FROM json_each(?)) AND ended_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.group_id = synergon_group.id)
RETURNING id

-- name: reopen_flows
UPDATE synergon_group SET ended_at = NULL, state = NULL WHERE id IN (SELECT value FROM json_each(?)) AND is_flow = 1

-- name: set_then
UPDATE synergon_group SET then_id = ? WHERE id = ?

-- name: groups
SELECT {GroupRow} FROM synergon_group WHERE id IN (SELECT value FROM json_each(?))

-- name: group_counts
SELECT group_id, state, count(*) AS count FROM synergon_task
WHERE group_id IN (SELECT value FROM json_each(:ids)) GROUP BY group_id, state
UNION ALL
SELECT group_id, state, count(*) FROM synergon_history
WHERE group_id IN (SELECT value FROM json_each(:ids)) GROUP BY group_id, state

-- name: live_tasks_of_group
SELECT id FROM synergon_task WHERE group_id = ? ORDER BY id

-- name: unsuccessful_tasks_of_group
SELECT id FROM synergon_history WHERE group_id = ? AND state <> 'succeeded' ORDER BY id

-- name: flows
SELECT id FROM synergon_group
WHERE is_flow = 1 AND id < coalesce(:before, 9223372036854775807) AND (:name IS NULL OR name = :name)
    AND (:state IS NULL OR state = :state) AND (:is_open IS NULL OR (ended_at IS NULL) = :is_open)
ORDER BY id DESC LIMIT :limit

-- name: old_groups
-- The groups and flows that ended in this state before this moment, have no live task, and whose tasks no live task
-- depends on.
SELECT id FROM synergon_group AS ended
WHERE state = ? AND ended_at < ? AND ended_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.group_id = ended.id)
    AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.id = ended.then_id)
    AND NOT EXISTS (
        SELECT 1 FROM synergon_history AS member
        CROSS JOIN synergon_dependency AS dependency CROSS JOIN synergon_task AS task
        WHERE member.group_id = ended.id AND dependency.needs_id = member.id AND task.id = dependency.task_id
    )
ORDER BY ended_at LIMIT ?

-- name: delete_groups
DELETE FROM synergon_group WHERE id IN (SELECT value FROM json_each(?))
