-- name: add_group
INSERT INTO {schema}.task_group (name, created_at, is_flow) VALUES ($1, statement_timestamp(), $2) RETURNING id

-- name: lock_groups
SELECT id FROM {schema}.task_group WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: join_groups
-- A shared lock: other transactions may add tasks to the group, but none may end it.
SELECT id FROM {schema}.task_group WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE

-- name: end_empty_groups
UPDATE {schema}.task_group SET ended_at = statement_timestamp(), state = CASE
    WHEN EXISTS (SELECT 1 FROM {schema}.history WHERE history.group_id = task_group.id AND history.state = 'failed')
        THEN 'failed'
    WHEN EXISTS (SELECT 1 FROM {schema}.history WHERE history.group_id = task_group.id AND history.state = 'cancelled')
        THEN 'cancelled'
    ELSE 'succeeded'
END
WHERE id = ANY ($1) AND ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE group_id = task_group.id)
RETURNING id

-- name: reopen_flows
UPDATE {schema}.task_group SET ended_at = NULL, state = NULL WHERE id = ANY ($1) AND is_flow

-- name: set_then
UPDATE {schema}.task_group SET then_id = $2 WHERE id = $1

-- name: groups
SELECT {GroupRow} FROM {schema}.task_group WHERE id = ANY ($1)

-- name: group_counts
SELECT group_id, state, count(*) AS count FROM {schema}.task WHERE group_id = ANY ($1) GROUP BY group_id, state
UNION ALL
SELECT group_id, state, count(*) FROM {schema}.history WHERE group_id = ANY ($1) GROUP BY group_id, state

-- name: live_tasks_of_group
SELECT id FROM {schema}.task WHERE group_id = $1 ORDER BY id

-- name: unsuccessful_tasks_of_group
SELECT id FROM {schema}.history WHERE group_id = $1 AND state <> 'succeeded' ORDER BY id

-- name: flows
SELECT id FROM {schema}.task_group
WHERE is_flow AND id < coalesce($1::bigint, 9223372036854775807) AND ($2::text IS NULL OR name = $2)
    AND ($3::text IS NULL OR state = $3) AND ($4::boolean IS NULL OR (ended_at IS NULL) = $4)
ORDER BY id DESC LIMIT $5

-- name: old_groups
-- The groups and flows that ended in this state longer ago than this, have no live task, and whose tasks no live task
-- depends on.
SELECT id FROM {schema}.task_group AS ended
WHERE state = $1 AND ended_at IS NOT NULL AND ended_at < now() - $2::bigint * interval '1 microsecond'
    AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE group_id = ended.id)
    AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE task.id = ended.then_id)
    AND NOT EXISTS (
        SELECT 1 FROM {schema}.history AS member JOIN {schema}.dependency ON dependency.needs_id = member.id
        JOIN {schema}.task ON task.id = dependency.task_id
        WHERE member.group_id = ended.id
    )
ORDER BY ended_at LIMIT $3

-- name: delete_groups
DELETE FROM {schema}.task_group WHERE id = ANY ($1)
