-- name: terms
SELECT value, every, burst FROM synergon_limit WHERE name = 'key:' || ?

-- name: survey
-- How lines of a kind stand: how many run, how many are ready, the last of those, and the first that wait.
-- {keys} is a list of parameters in brackets; :limit says how many of those who wait.
WITH key_queue (limit_key) AS (VALUES {keys})
SELECT
    key_queue.limit_key,
    (
        SELECT count(*) FROM synergon_task AS task
        WHERE task.kind = :kind AND task.limit_key = key_queue.limit_key AND task.after_group IS NULL
            AND task.state = 'running'
    ),
    (
        SELECT count(*) FROM synergon_task AS task
        WHERE task.kind = :kind AND task.limit_key = key_queue.limit_key AND task.after_group IS NULL
            AND task.state = 'ready'
    ),
    (
        SELECT json_array(task.priority, task.id) FROM synergon_task AS task
        WHERE task.kind = :kind AND task.limit_key = key_queue.limit_key AND task.after_group IS NULL
            AND task.state = 'ready'
        ORDER BY task.priority, task.id DESC LIMIT 1
    ),
    (
        SELECT json_group_array(json_array(first.priority, first.id)) FROM (
            SELECT task.priority, task.id FROM synergon_task AS task
            WHERE task.kind = :kind AND task.limit_key = key_queue.limit_key AND task.after_group IS NULL
                AND task.state = 'waiting'
                AND task.queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
            ORDER BY task.priority DESC, task.id LIMIT :limit
        ) AS first
    )
FROM key_queue WHERE key_queue.limit_key IS NOT NULL

-- name: first_of_key_queue
-- Those that should be ready: the first of the ones that are and the ones that wait.
SELECT id, state FROM (
    SELECT id, state, priority FROM synergon_task
    WHERE kind = :kind AND limit_key = :limit_key AND after_group IS NULL AND state = 'ready'
    UNION ALL
    SELECT * FROM (
        SELECT id, state, priority FROM synergon_task
        WHERE kind = :kind AND limit_key = :limit_key AND after_group IS NULL AND state = 'waiting'
            AND queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
        ORDER BY priority DESC, id LIMIT :limit
    )
)
ORDER BY priority DESC, id LIMIT :limit

-- name: ready_of_key_queue
SELECT id FROM synergon_task WHERE kind = ? AND limit_key = ? AND after_group IS NULL AND state = 'ready'

-- name: promote
UPDATE synergon_task SET state = 'ready' WHERE id IN (SELECT value FROM json_each(?)) AND state = 'waiting'

-- name: demote
UPDATE synergon_task SET state = 'waiting', reserved_by = NULL, reserved_until = NULL
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'ready'

-- name: promote_key_queues
-- Lines of a kind that have no end.
UPDATE synergon_task SET state = 'ready'
WHERE kind = :kind AND limit_key IN (VALUES {keys}) AND after_group IS NULL AND state = 'waiting'
RETURNING id

-- name: demote_paused
UPDATE synergon_task SET state = 'waiting', reserved_by = NULL, reserved_until = NULL
WHERE kind = :kind AND limit_key IN (VALUES {keys}) AND after_group IS NULL AND state = 'ready'
    AND queue IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
RETURNING id

-- name: key_queues_of_kind
-- The lines of a kind that have ready or waiting tasks, by jumping from one to the next in the index.
WITH RECURSIVE key_queue (state, limit_key) AS (
    SELECT start.state, (
        SELECT min(task.limit_key) FROM synergon_task AS task
        WHERE task.kind = :kind AND task.state = start.state AND task.limit_key IS NOT NULL AND task.after_group IS NULL
    )
    FROM (SELECT 'ready' AS state UNION ALL SELECT 'waiting') AS start
    UNION ALL
    SELECT key_queue.state, (
        SELECT min(task.limit_key) FROM synergon_task AS task
        WHERE task.kind = :kind AND task.state = key_queue.state AND task.limit_key > key_queue.limit_key
            AND task.after_group IS NULL
    )
    FROM key_queue WHERE key_queue.limit_key IS NOT NULL
)
SELECT DISTINCT limit_key FROM key_queue WHERE limit_key IS NOT NULL

-- name: key_queues_of_queue
SELECT DISTINCT kind, limit_key FROM synergon_task
WHERE limit_key IS NOT NULL AND after_group IS NULL AND state IN ('ready', 'waiting') AND queue = ?

-- name: enter_key_queue
UPDATE synergon_task SET limit_key = ? WHERE id = ?

-- name: rates
SELECT limit_key, next_at FROM synergon_rate WHERE kind = :kind AND limit_key IN (VALUES {keys})

-- name: next_start
SELECT next_at FROM synergon_rate WHERE kind = ? AND limit_key = ?

-- name: join_key_queue
-- Those of the lines whose turn has come by now.
UPDATE synergon_task SET state = 'waiting'
WHERE kind = :kind AND limit_key IN (VALUES {keys}) AND state = 'scheduled' AND run_at <= :now
RETURNING id

-- name: charge_rate
INSERT INTO synergon_rate (kind, limit_key, next_at) VALUES (?, ?, ?)
ON CONFLICT (kind, limit_key) DO UPDATE SET next_at = excluded.next_at

-- name: is_deferred
SELECT 1 FROM synergon_task
WHERE kind = ? AND limit_key = ? AND state = 'scheduled' AND run_at <= ? LIMIT 1

-- name: defer
UPDATE synergon_task SET state = 'scheduled', run_at = ? WHERE id = ? AND state = 'waiting'

-- name: prune_rates
DELETE FROM synergon_rate WHERE (kind, limit_key) IN (
    SELECT kind, limit_key FROM synergon_rate WHERE next_at < ? ORDER BY next_at LIMIT ?
)
