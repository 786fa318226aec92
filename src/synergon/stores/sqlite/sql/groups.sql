-- name: add_group
INSERT INTO synergon_group (id, name, created_at, is_flow) VALUES (:next_id, $1, :now, $2) RETURNING id

-- name: end_empty_groups
UPDATE synergon_group SET ended_at = :now, state = CASE
    WHEN EXISTS (SELECT 1 FROM synergon_history AS task WHERE task.group_id = synergon_group.id AND task.state = 'failed')
        THEN 'failed'
    WHEN EXISTS (SELECT 1 FROM synergon_history AS task WHERE task.group_id = synergon_group.id AND task.state = 'cancelled')
        THEN 'cancelled'
    ELSE 'succeeded'
END
WHERE id IN (SELECT value FROM json_each($1)) AND ended_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.group_id = synergon_group.id)
RETURNING id

-- name: reopen_flows
UPDATE synergon_group SET ended_at = NULL, state = NULL WHERE id IN (SELECT value FROM json_each($1)) AND is_flow = 1

-- name: set_then
UPDATE synergon_group SET then_id = $2 WHERE id = $1

-- name: groups
SELECT {GroupRow} FROM synergon_group WHERE id IN (SELECT value FROM json_each($1))

-- name: group_counts
SELECT group_id, state, count(*) AS count FROM synergon_task
WHERE group_id IN (SELECT value FROM json_each($1)) GROUP BY group_id, state
UNION ALL
SELECT group_id, state, count(*) FROM synergon_history
WHERE group_id IN (SELECT value FROM json_each($1)) GROUP BY group_id, state

-- name: live_tasks_of_group
SELECT id FROM synergon_task WHERE group_id = $1 ORDER BY id

-- name: unsuccessful_tasks_of_group
SELECT id FROM synergon_history WHERE group_id = $1 AND state <> 'succeeded' ORDER BY id

-- name: flows
SELECT id FROM synergon_group
WHERE is_flow = 1 AND id < coalesce($1, 9223372036854775807) AND ($2 IS NULL OR name = $2)
    AND ($3 IS NULL OR state = $3) AND ($4 IS NULL OR (ended_at IS NULL) = $4)
ORDER BY id DESC LIMIT $5

-- name: old_groups
-- The groups and flows that ended in this state longer ago than this, have no live task, and whose tasks no live task
-- depends on.
SELECT id FROM synergon_group AS ended
WHERE state = $1 AND ended_at < :now - $2 AND ended_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.group_id = ended.id)
    AND NOT EXISTS (SELECT 1 FROM synergon_task AS task WHERE task.id = ended.then_id)
    AND NOT EXISTS (
        SELECT 1 FROM synergon_history AS member
        CROSS JOIN synergon_dependency AS dependency CROSS JOIN synergon_task AS task
        WHERE member.group_id = ended.id AND dependency.needs_id = member.id AND task.id = dependency.task_id
    )
ORDER BY ended_at LIMIT $3

-- name: delete_groups
DELETE FROM synergon_group WHERE id IN (SELECT value FROM json_each($1))
