-- name: add_group
INSERT INTO {schema}.task_group (name, created_at) VALUES ($1, statement_timestamp()) RETURNING id

-- name: kinds_of_followers
-- The kinds of tasks that join a key queue when one of these groups ends.
SELECT DISTINCT kind FROM {schema}.task WHERE after_group = ANY ($1) AND limit_key IS NOT NULL

-- name: lock_groups
SELECT id FROM {schema}.task_group WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: join_groups
-- A shared lock: other transactions may add tasks to the group, but none may end it.
SELECT id FROM {schema}.task_group WHERE id = ANY ($1) ORDER BY id FOR KEY SHARE

-- name: open_groups
SELECT id FROM {schema}.task_group WHERE id = ANY ($1) AND ended_at IS NULL

-- name: end_empty_groups
UPDATE {schema}.task_group SET ended_at = statement_timestamp()
WHERE id = ANY ($1) AND ended_at IS NULL AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE group_id = task_group.id)
RETURNING id

-- name: release_followers
UPDATE {schema}.task
SET after_group = NULL,
    state = CASE
        WHEN run_at > statement_timestamp() THEN 'scheduled' WHEN limit_key IS NOT NULL THEN 'waiting' ELSE 'ready'
    END
WHERE after_group = ANY ($1)
RETURNING id, kind, state, limit_key, group_id

-- name: set_then
UPDATE {schema}.task_group SET then_id = $2 WHERE id = $1

-- name: groups
SELECT id, name, created_at, ended_at, then_id FROM {schema}.task_group WHERE id = ANY ($1)

-- name: group_counts
SELECT group_id, state, count(*) AS count FROM {schema}.task WHERE group_id = ANY ($1) GROUP BY group_id, state
UNION ALL
SELECT group_id, state, count(*) FROM {schema}.history WHERE group_id = ANY ($1) GROUP BY group_id, state

-- name: live_tasks_of_group
SELECT id FROM {schema}.task WHERE group_id = $1 ORDER BY id

-- name: prune_groups
-- Deletes groups that have ended and have no task, live or final. The task that follows a group counts, too.
DELETE FROM {schema}.task_group WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.task_group AS ended
    WHERE ended_at IS NOT NULL AND ended_at < now() - $1::bigint * interval '1 microsecond'
        AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE group_id = ended.id)
        AND NOT EXISTS (SELECT 1 FROM {schema}.history WHERE group_id = ended.id)
        AND NOT EXISTS (SELECT 1 FROM {schema}.history WHERE history.id = ended.then_id)
        AND NOT EXISTS (SELECT 1 FROM {schema}.task WHERE task.id = ended.then_id)
    ORDER BY ended_at LIMIT $2
))
