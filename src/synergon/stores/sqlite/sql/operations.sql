-- name: live_records
-- The code appends the conditions.
SELECT {live_record}, reserved_by FROM synergon_task

-- name: final_records
-- The code appends the conditions.
SELECT {final_record} FROM synergon_history

-- name: live_positions
-- The code replaces the placeholder of the key, and appends the conditions.
SELECT {key} AS key, id FROM synergon_task

-- name: final_positions
SELECT {key} AS key, id FROM synergon_history

-- name: get_live
SELECT {live_record}, reserved_by FROM synergon_task WHERE id IN (SELECT value FROM json_each($1))

-- name: get_final
SELECT {final_record} FROM synergon_history WHERE id IN (SELECT value FROM json_each($1))

-- name: old_tasks
-- The tasks of a group or a flow are pruned together. A task that a live task depends on is kept.
SELECT id, queue, kind, state, finished_at FROM synergon_history AS old
WHERE state = ? AND finished_at < ? AND keep_for IS NULL AND group_id IS NULL AND NOT EXISTS (
    SELECT 1 FROM synergon_dependency AS dependency CROSS JOIN synergon_task AS task
    WHERE dependency.needs_id = old.id AND task.id = dependency.task_id
)
ORDER BY finished_at LIMIT ?

-- name: tasks_of_groups
SELECT id, queue, kind, state, finished_at FROM synergon_history
WHERE group_id IN (SELECT value FROM json_each(?)) ORDER BY finished_at

-- name: keeps
-- The distinct values of `keep_for`, each found by one step in the index.
WITH RECURSIVE found AS (
    SELECT min(keep_for) AS keep_for FROM synergon_history WHERE keep_for IS NOT NULL
    UNION ALL
    SELECT (SELECT min(history.keep_for) FROM synergon_history AS history WHERE history.keep_for > found.keep_for) FROM found
    WHERE found.keep_for IS NOT NULL
)
SELECT keep_for FROM found WHERE keep_for IS NOT NULL

-- name: old_tasks_by_keep_for
SELECT id, queue, kind, state, finished_at FROM synergon_history AS old
WHERE keep_for = ? AND finished_at < ? AND group_id IS NULL AND NOT EXISTS (
    SELECT 1 FROM synergon_dependency AS dependency CROSS JOIN synergon_task AS task
    WHERE dependency.needs_id = old.id AND task.id = dependency.task_id
)
ORDER BY finished_at LIMIT ?

-- name: add_queue
INSERT INTO synergon_queue (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: pause_queue
INSERT INTO synergon_queue (name, paused_at) VALUES ($1, :now)
ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE paused_at IS NULL

-- name: resume_queue
UPDATE synergon_queue SET paused_at = NULL WHERE name = $1 AND paused_at IS NOT NULL

-- name: queues
SELECT name, paused_at FROM synergon_queue ORDER BY name

-- name: paused_queues
SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL

-- name: live_counts
SELECT queue, kind, 'waiting' AS state, sum(count) AS count FROM (
    SELECT queue, kind, count(*) AS count FROM synergon_task
    WHERE limit_key IS NOT NULL AND is_dependent = 0 AND state = 'waiting' GROUP BY kind, queue
    UNION ALL
    SELECT queue, kind, count(*) FROM synergon_task WHERE is_dependent = 1 GROUP BY kind, queue
) GROUP BY queue, kind
UNION ALL
SELECT queue, kind, 'ready', count(*) FROM synergon_task WHERE state = 'ready' GROUP BY kind, queue
UNION ALL
SELECT queue, kind, 'scheduled', count(*) FROM synergon_task WHERE state = 'scheduled' GROUP BY kind, queue
UNION ALL
SELECT queue, kind, 'running', count(*) FROM synergon_task WHERE state = 'running' GROUP BY kind, queue

-- name: first_counts
SELECT queue, kind, state, count(*) AS count FROM (SELECT queue, kind, state FROM synergon_task LIMIT $1)
GROUP BY queue, kind, state

-- name: final_counts
SELECT queue, kind, state, count FROM synergon_tally WHERE count > 0

-- name: stored_counts
SELECT counted_at, numbers FROM synergon_live_count

-- name: store_counts
INSERT INTO synergon_live_count (one, counted_at, numbers) VALUES (1, $1, CAST($2 AS BLOB))
ON CONFLICT (one) DO UPDATE SET counted_at = excluded.counted_at, numbers = excluded.numbers

-- name: ready_kinds
-- The kinds that have ready tasks, each found by one step in the index. One statement, because a kind that is not UTF-8
-- cannot be compared outside of the database.
WITH RECURSIVE ready (kind) AS (
    SELECT min(kind) FROM synergon_task WHERE state = 'ready'
    UNION ALL
    SELECT (SELECT min(kind) FROM synergon_task WHERE state = 'ready' AND kind > ready.kind)
    FROM ready WHERE ready.kind IS NOT NULL
)
SELECT kind FROM ready WHERE kind IS NOT NULL

-- name: oldest_of_group
-- The earlier due time of two tasks: the first in claim order, and the first with the lowest priority.
SELECT min(due_at) FROM (
    SELECT * FROM (
        SELECT run_at AS due_at FROM synergon_task
        WHERE state = 'ready' AND kind = :kind AND queue = :queue AND requirements = :requirements
        ORDER BY priority DESC, fair_tag, id LIMIT 1
    )
    UNION ALL
    SELECT * FROM (
        SELECT run_at FROM synergon_task
        WHERE state = 'ready' AND kind = :kind AND queue = :queue AND requirements = :requirements AND priority = (
            SELECT min(priority) FROM synergon_task
            WHERE state = 'ready' AND kind = :kind AND queue = :queue AND requirements = :requirements
        )
        ORDER BY fair_tag, id LIMIT 1
    )
)

-- name: failures
SELECT kind, count(*) AS count FROM (
    SELECT kind FROM synergon_history WHERE state = 'failed' AND finished_at >= :now - $1 ORDER BY finished_at DESC LIMIT $2
) GROUP BY kind

-- name: overdue
SELECT count(*) FROM synergon_task WHERE state = 'running' AND overdue = 1
