-- name: key_queue_limit
SELECT name, value, per, starts, burst, by_units, next_at, batch_size, batch_wait FROM synergon_limit WHERE name = 'key:' || ?

-- name: key_queue_counts
-- {names} is a list of pairs of parameters in brackets: kind and limit key. The last parameter is how many waiting
-- tasks of each key queue are read. `+` keeps SQLite from using the index by queue for ready tasks.
WITH key_queue (kind, limit_key) AS (VALUES {names})
SELECT
    key_queue.kind AS kind,
    key_queue.limit_key AS limit_key,
    (
        SELECT count(*) FROM synergon_task AS task
        WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.is_dependent = 0
            AND task.state = 'running'
    ) AS running,
    (
        SELECT count(*) FROM synergon_task AS task
        WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.is_dependent = 0
            AND task.state = 'ready'
    ) AS ready,
    CASE WHEN EXISTS (SELECT 1 FROM synergon_queue WHERE paused_at IS NOT NULL) THEN (
        SELECT count(*) FROM synergon_task AS task
        WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.is_dependent = 0
            AND task.state = 'ready' AND +task.queue IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
    ) ELSE 0 END AS ready_in_paused,
    (
        SELECT json_array(task.priority, task.id) FROM synergon_task AS task
        WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.is_dependent = 0
            AND task.state = 'ready'
        ORDER BY task.priority, task.id DESC LIMIT 1
    ) AS last_ready,
    (
        SELECT json_group_array(json_array(first.priority, first.id)) FROM (
            SELECT task.priority, task.id FROM synergon_task AS task
            WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.is_dependent = 0
                AND task.state = 'waiting'
                AND task.queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
            ORDER BY task.priority DESC, task.id LIMIT ?
        ) AS first
    ) AS first_waiting
FROM key_queue WHERE key_queue.limit_key IS NOT NULL

-- name: next_batch
-- What a key queue has for its next batch. No more tasks than :size are read of each state.
SELECT
    :kind AS kind,
    :limit_key AS limit_key,
    (
        SELECT count(*) FROM synergon_task
        WHERE kind = :kind AND limit_key = :limit_key AND is_dependent = 0 AND state = 'ready'
    ) AS ready,
    count(*) AS count,
    min(run_at) AS since,
    (SELECT due_at FROM synergon_batch_alarm WHERE kind = :kind AND limit_key = :limit_key) AS alarm
FROM (
    SELECT * FROM (
        SELECT run_at FROM synergon_task
        WHERE kind = :kind AND limit_key = :limit_key AND is_dependent = 0 AND state = 'ready'
            AND +queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
        LIMIT :size
    )
    UNION ALL
    SELECT * FROM (
        SELECT run_at FROM synergon_task
        WHERE kind = :kind AND limit_key = :limit_key AND is_dependent = 0 AND state = 'waiting'
            AND queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
        LIMIT :size
    )
)

-- name: set_alarms
INSERT INTO synergon_batch_alarm (kind, limit_key, due_at) VALUES ($1, $2, $3)
ON CONFLICT (kind, limit_key) DO UPDATE SET due_at = excluded.due_at

-- name: delete_alarms
DELETE FROM synergon_batch_alarm WHERE kind = $1 AND limit_key = $2

-- name: due_alarms
SELECT kind, limit_key FROM synergon_batch_alarm WHERE due_at <= :now ORDER BY due_at LIMIT $1

-- name: first_waiting
SELECT id FROM synergon_task
WHERE kind = $1 AND limit_key = $2 AND is_dependent = 0 AND state = 'waiting'
    AND queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
ORDER BY priority DESC, id LIMIT $3

-- name: excess
SELECT id FROM synergon_task
WHERE kind = $1 AND limit_key = $2 AND is_dependent = 0 AND state = 'ready' AND id NOT IN (
    SELECT id FROM (
        SELECT id, priority FROM synergon_task
        WHERE kind = $1 AND limit_key = $2 AND is_dependent = 0 AND state = 'ready'
            AND queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
        UNION ALL
        SELECT * FROM (
            SELECT id, priority FROM synergon_task
            WHERE kind = $1 AND limit_key = $2 AND is_dependent = 0 AND state = 'waiting'
                AND queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
            ORDER BY priority DESC, id LIMIT $3
        )
    )
    ORDER BY priority DESC, id LIMIT $3
)

-- name: promote
UPDATE synergon_task SET state = 'ready' WHERE id IN (SELECT value FROM json_each(?)) AND state = 'waiting'

-- name: promote_all
WITH key_queue (kind, limit_key) AS (VALUES {names})
UPDATE synergon_task SET state = 'ready' WHERE id IN (
    SELECT task.id FROM key_queue CROSS JOIN synergon_task AS task
    WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.is_dependent = 0
        AND task.state = 'waiting'
)
RETURNING {ChangedTask}

-- name: demote
UPDATE synergon_task SET state = 'waiting', reserved_by = NULL, reserved_until = NULL
WHERE id IN (SELECT value FROM json_each($1)) AND state = 'ready'
RETURNING {ChangedTask}

-- name: key_queues_of_kind
-- A loose index scan, which jumps from one key queue to the next.
WITH RECURSIVE found (state, limit_key) AS (
    SELECT start.state, (
        SELECT min(task.limit_key) FROM synergon_task AS task
        WHERE task.kind = $1 AND task.state = start.state AND task.limit_key IS NOT NULL AND task.is_dependent = 0
    )
    FROM (SELECT 'ready' AS state UNION ALL SELECT 'waiting') AS start
    UNION ALL
    SELECT found.state, (
        SELECT min(task.limit_key) FROM synergon_task AS task
        WHERE task.kind = $1 AND task.state = found.state AND task.limit_key > found.limit_key
            AND task.is_dependent = 0
    )
    FROM found WHERE found.limit_key IS NOT NULL
)
SELECT DISTINCT $1 AS kind, limit_key FROM found WHERE limit_key IS NOT NULL

-- name: key_queues_of_queue
SELECT DISTINCT kind, limit_key FROM synergon_task
WHERE limit_key IS NOT NULL AND is_dependent = 0 AND state IN ('ready', 'waiting') AND queue = $1

-- name: key_queue_rates
WITH key_queue (kind, limit_key) AS (VALUES {names}), clock (now) AS (SELECT ?)
SELECT
    key_queue.kind AS kind,
    key_queue.limit_key AS limit_key,
    clock.now AS now,
    (
        SELECT next_at FROM synergon_rate AS rate
        WHERE rate.kind = key_queue.kind AND rate.limit_key = key_queue.limit_key
    ) AS next_at,
    EXISTS (
        SELECT 1 FROM synergon_task AS task
        WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.state = 'scheduled'
            AND task.run_at <= clock.now
    ) AS is_due,
    (
        SELECT min(task.run_at) FROM synergon_task AS task
        WHERE task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.state = 'scheduled'
            AND task.run_at > clock.now
    ) AS next_scheduled
FROM key_queue CROSS JOIN clock WHERE key_queue.limit_key IS NOT NULL

-- name: next_start
SELECT next_at FROM synergon_rate WHERE kind = ? AND limit_key = ?

-- name: queue_due
UPDATE synergon_task SET state = 'waiting'
WHERE kind = $1 AND limit_key = $2 AND state = 'scheduled' AND run_at <= $3 AND is_dependent = 0
RETURNING {ChangedTask}

-- name: set_next_starts
INSERT INTO synergon_rate (kind, limit_key, next_at) VALUES ($1, $2, $3)
ON CONFLICT (kind, limit_key) DO UPDATE SET next_at = excluded.next_at

-- name: postpone
-- $1 is a list of pairs [id, moment].
UPDATE synergon_task SET state = 'scheduled', run_at = postponed.run_at
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS run_at FROM json_each($1)
) AS postponed
WHERE synergon_task.id = postponed.id AND state = 'waiting'
RETURNING {ChangedTask}

-- name: prune_rates
DELETE FROM synergon_rate WHERE (kind, limit_key) IN (
    SELECT kind, limit_key FROM synergon_rate WHERE next_at < :now ORDER BY next_at LIMIT $1
)
