-- name: add_dependencies
INSERT INTO {schema}.dependency ({DependencyRow})
SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::integer[], $5::text[], $6::text[])

-- name: lock_needed
-- Locks the needed tasks, so that none of them ends before its dependents are stored.
SELECT id, state FROM {schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: needed_live_state
SELECT id, state FROM {schema}.task WHERE id = ANY ($1)

-- name: needed_final_state
SELECT id, state FROM {schema}.history WHERE id = ANY ($1)

-- name: needed_tasks
-- A single statement, so that a task that ends meanwhile is found in one of the two tables.
SELECT task_id, needs_id, position, item, ended_as, coalesce(history.kind, live.kind) AS kind,
    coalesce(history.state, live.state) AS state, history.reason,
    CASE WHEN sum(octet_length(history.result)) OVER (PARTITION BY task_id) <= $2::bigint THEN history.result END AS result
FROM {schema}.dependency
LEFT JOIN LATERAL (
    SELECT kind, state, reason, result FROM {schema}.history WHERE history.id = dependency.needs_id OFFSET 0
) AS history ON true
LEFT JOIN LATERAL (
    SELECT kind, state FROM {schema}.task WHERE task.id = dependency.needs_id AND history.kind IS NULL OFFSET 0
) AS live ON true
WHERE task_id + 0 = ANY ($1)
ORDER BY task_id, position, item NULLS FIRST

-- name: mark_needed
UPDATE {schema}.task SET has_dependents = true WHERE id = ANY ($1) AND NOT has_dependents

-- name: dependencies_of
SELECT {DependencyRow} FROM {schema}.dependency WHERE task_id + 0 = ANY ($1)
ORDER BY task_id, position, item NULLS FIRST

-- name: open_dependents
-- Here and below, `coalesce` keeps the planner from reading the index of all open dependencies.
SELECT {DependencyRow} FROM {schema}.dependency WHERE needs_id = ANY ($1) AND coalesce(ended_as, 'open') = 'open'

-- name: lock_dependents
SELECT id FROM {schema}.task WHERE id = ANY (ARRAY(
    SELECT task_id FROM {schema}.dependency WHERE needs_id = ANY ($1) AND coalesce(ended_as, 'open') = 'open'
) || $2::bigint[])
ORDER BY id FOR UPDATE

-- name: dependents
SELECT {DependencyRow} FROM {schema}.dependency WHERE needs_id = ANY ($1)

-- name: kinds_of_dependents
-- The kinds of tasks that may join a key queue when these tasks have ended.
SELECT DISTINCT task.kind FROM {schema}.dependency JOIN {schema}.task ON task.id = dependency.task_id
WHERE needs_id = ANY ($1) AND coalesce(ended_as, 'open') = 'open' AND limit_key IS NOT NULL

-- name: doomed
-- These tasks, and all tasks that are cancelled with them, directly or through others. OFFSET 0, here and below, keeps
-- the planner from joining with the whole table at each step.
WITH RECURSIVE doomed (id) AS (
    SELECT unnest($1::bigint[])
    UNION
    SELECT dependent.task_id FROM doomed CROSS JOIN LATERAL (
        SELECT task_id FROM {schema}.dependency
        WHERE needs_id = doomed.id AND coalesce(ended_as, 'open') = 'open' AND if_fails = 'cancel' OFFSET 0
    ) AS dependent
)
SELECT id FROM doomed

-- name: cancelled_with
-- These tasks, and all tasks that were cancelled because of them, directly or through others.
WITH RECURSIVE found (id) AS (
    SELECT unnest($1::bigint[])
    UNION
    SELECT dependent.id FROM found CROSS JOIN LATERAL (
        SELECT history.id FROM {schema}.dependency JOIN {schema}.history ON history.id = dependency.task_id
        WHERE dependency.needs_id = found.id AND dependency.if_fails = 'cancel'
            AND history.state || '' = 'cancelled' AND history.reason = 'dependency'
        OFFSET 0
    ) AS dependent
)
SELECT id FROM found

-- name: close_dependencies
UPDATE {schema}.dependency SET ended_as = $2 WHERE needs_id = ANY ($1) AND coalesce(ended_as, 'open') = 'open'

-- name: reopen_dependencies
UPDATE {schema}.dependency SET ended_as = NULL
FROM unnest($1::bigint[], $2::bigint[]) AS reopened (task_id, needs_id)
WHERE dependency.needs_id = reopened.needs_id AND dependency.task_id = reopened.task_id

-- name: release_dependents
-- The caller holds the locks of these tasks: without them, two transactions that end the last two dependencies of a
-- task would each see the other dependency open.
UPDATE {schema}.task
SET is_dependent = false,
    state = CASE
        WHEN run_at > statement_timestamp() THEN 'scheduled' WHEN limit_key IS NOT NULL THEN 'waiting' ELSE 'ready'
    END
WHERE id = ANY ($1) AND is_dependent::text = 'true' AND NOT EXISTS (
    SELECT 1 FROM {schema}.dependency WHERE dependency.task_id = task.id AND dependency.ended_as IS NULL
)
RETURNING {ChangedTask}

-- name: make_dependent
UPDATE {schema}.task SET is_dependent = true, state = 'waiting', fair_tag = 0, reserved_by = NULL, reserved_until = NULL
WHERE id = ANY ($1) AND state || '' <> 'running'
RETURNING {ChangedTask}

-- name: defer_dependents
UPDATE {schema}.task SET state = 'scheduled' WHERE id = ANY ($1) AND is_dependent::text = 'true'

-- name: unsettled
SELECT id FROM {schema}.task WHERE is_dependent::text = 'true' AND state || '' = 'scheduled' AND run_at <= now() LIMIT $1

-- name: needed_by
-- A live task that depends on the task.
SELECT dependency.task_id FROM {schema}.dependency JOIN {schema}.task ON task.id = dependency.task_id
WHERE dependency.needs_id = $1 LIMIT 1

-- name: delete_dependencies
DELETE FROM {schema}.dependency WHERE task_id + 0 = ANY ($1)
