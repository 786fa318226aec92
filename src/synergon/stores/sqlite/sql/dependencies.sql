-- name: add_dependencies
INSERT INTO synergon_dependency ({DependencyRow}) VALUES ($1, $2, $3, $4, $5, $6)

-- name: lock_needed
SELECT id, state FROM synergon_task WHERE id IN (SELECT value FROM json_each($1))
UNION ALL
SELECT id, state FROM synergon_history WHERE id IN (SELECT value FROM json_each($1))

-- name: needed_tasks
-- Results are looked up last: the sum of their sizes is computed from a temporary table, which must not contain them.
SELECT task_id, needs_id, position, item, ended_as, kind, state, reason,
    CASE WHEN bytes <= $2 THEN (SELECT result FROM synergon_history WHERE id = needs_id) END AS result
FROM (
    SELECT task_id, needs_id, position, item, ended_as,
        coalesce(history.kind, (SELECT kind FROM synergon_task AS task WHERE task.id = needs_id)) AS kind,
        coalesce(history.state, (SELECT state FROM synergon_task AS task WHERE task.id = needs_id)) AS state,
        history.reason, sum(length(history.result)) OVER (PARTITION BY task_id) AS bytes
    FROM synergon_dependency AS dependency LEFT JOIN synergon_history AS history ON history.id = needs_id
    WHERE task_id IN (SELECT value FROM json_each($1))
)
ORDER BY task_id, position, item

-- name: mark_needed
UPDATE synergon_task SET has_dependents = 1 WHERE id IN (SELECT value FROM json_each($1)) AND has_dependents = 0

-- name: dependencies_of
SELECT {DependencyRow} FROM synergon_dependency WHERE task_id IN (SELECT value FROM json_each($1))
ORDER BY task_id, position, item

-- name: open_dependents
SELECT {DependencyRow} FROM synergon_dependency
WHERE needs_id IN (SELECT value FROM json_each($1)) AND ended_as IS NULL

-- name: lock_dependents
SELECT task_id FROM synergon_dependency WHERE needs_id IN (SELECT value FROM json_each($1)) AND ended_as IS NULL
UNION
SELECT value FROM json_each($2)

-- name: dependents
SELECT {DependencyRow} FROM synergon_dependency WHERE needs_id IN (SELECT value FROM json_each($1))

-- name: doomed
-- These tasks, and all tasks that are cancelled with them, directly or through others.
WITH RECURSIVE doomed (id) AS (
    SELECT value FROM json_each($1)
    UNION
    SELECT dependency.task_id FROM doomed CROSS JOIN synergon_dependency AS dependency
    WHERE dependency.needs_id = doomed.id AND dependency.ended_as IS NULL AND dependency.if_fails = 'cancel'
)
SELECT id FROM doomed

-- name: cancelled_with
-- These tasks, and all tasks that were cancelled because of them, directly or through others.
WITH RECURSIVE found (id) AS (
    SELECT value FROM json_each($1)
    UNION
    SELECT history.id FROM found
    CROSS JOIN synergon_dependency AS dependency
    CROSS JOIN synergon_history AS history
    WHERE dependency.needs_id = found.id AND dependency.if_fails = 'cancel' AND history.id = dependency.task_id
        AND history.state = 'cancelled' AND history.reason = 'dependency'
)
SELECT id FROM found

-- name: close_dependencies
UPDATE synergon_dependency SET ended_as = $2
WHERE needs_id IN (SELECT value FROM json_each($1)) AND ended_as IS NULL

-- name: reopen_dependencies
UPDATE synergon_dependency SET ended_as = NULL WHERE task_id = $1 AND needs_id = $2

-- name: release_dependents
-- Names the index of open dependencies: by the primary key, each end would read all dependencies of the task.
UPDATE synergon_task
SET is_dependent = 0,
    state = CASE WHEN run_at > :now THEN 'scheduled' WHEN limit_key IS NOT NULL THEN 'waiting' ELSE 'ready' END
WHERE id IN (SELECT value FROM json_each($1)) AND is_dependent = 1 AND NOT EXISTS (
    SELECT 1 FROM synergon_dependency AS dependency INDEXED BY synergon_dependency_open
    WHERE dependency.task_id = synergon_task.id AND dependency.ended_as IS NULL
)
RETURNING {ChangedTask}

-- name: make_dependent
UPDATE synergon_task SET is_dependent = 1, state = 'waiting', fair_tag = 0, reserved_by = NULL, reserved_until = NULL
WHERE id IN (SELECT value FROM json_each($1)) AND state <> 'running'
RETURNING {ChangedTask}

-- name: defer_dependents
UPDATE synergon_task SET state = 'scheduled' WHERE id IN (SELECT value FROM json_each($1)) AND is_dependent = 1

-- name: unsettled
SELECT id FROM synergon_task INDEXED BY synergon_task_unsettled
WHERE is_dependent = 1 AND state = 'scheduled' AND run_at <= :now LIMIT $1

-- name: needed_by
-- A live task that depends on the task.
SELECT dependency.task_id FROM synergon_dependency AS dependency CROSS JOIN synergon_task AS task
WHERE dependency.needs_id = $1 AND task.id = dependency.task_id LIMIT 1

-- name: delete_dependencies
DELETE FROM synergon_dependency WHERE task_id IN (SELECT value FROM json_each($1))
