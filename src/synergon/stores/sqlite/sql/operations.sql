-- name: live
SELECT id, kind, state, node_id, cancel_requested, limit_key, group_id FROM synergon_task WHERE id = ?

-- name: ended
SELECT id, kind, state, key, queue, limit_key FROM synergon_history WHERE id = ?

-- name: request_cancel
UPDATE synergon_task SET cancel_requested = 1 WHERE id = ? AND state = 'running'

-- name: revive
INSERT INTO synergon_task (
    id, kind, queue, state, priority, run_at, payload, max_attempts, claim_no, finished_no, key, enqueued_at, overrides,
    tags, meta, errors, limit_key, group_id, is_command, target, provider, requirements
)
SELECT
    id, kind, queue, CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END, priority, ?, payload, max_attempts, claim_no, finished_no, key, enqueued_at, overrides,
    tags, meta, errors, limit_key, group_id, is_command, target, provider, requirements
FROM synergon_history WHERE id = ?

-- name: reschedule
UPDATE synergon_task SET state = ?, run_at = ?, reserved_by = NULL, reserved_until = NULL
WHERE id = ? AND state IN ('scheduled', 'ready')

-- name: set_priority
UPDATE synergon_task SET priority = ? WHERE id = ? AND state <> 'running' AND is_command = 0

-- name: old
SELECT id, queue, kind, finished_at FROM synergon_history WHERE state = ? AND finished_at < ? ORDER BY finished_at LIMIT ?

-- name: prune
DELETE FROM synergon_history WHERE id IN (SELECT value FROM json_each(?))

-- name: add_queue
INSERT INTO synergon_queue (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: pause
UPDATE synergon_queue SET paused_at = ? WHERE name = ? AND paused_at IS NULL

-- name: resume
UPDATE synergon_queue SET paused_at = NULL WHERE name = ? AND paused_at IS NOT NULL

-- name: queues
SELECT name, paused_at FROM synergon_queue ORDER BY name

-- name: paused_queues
SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL

-- name: counts
SELECT queue, kind, 'waiting', sum(count) FROM (
    SELECT queue, kind, count(*) AS count FROM synergon_task
    WHERE limit_key IS NOT NULL AND after_group IS NULL AND state = 'waiting' GROUP BY kind, queue
    UNION ALL
    SELECT queue, kind, count(*) FROM synergon_task WHERE after_group IS NOT NULL GROUP BY kind, queue
) GROUP BY queue, kind
UNION ALL
SELECT queue, kind, 'ready', count(*) FROM synergon_task WHERE state = 'ready' GROUP BY kind, queue
UNION ALL
SELECT queue, kind, 'scheduled', count(*) FROM synergon_task WHERE state = 'scheduled' GROUP BY kind, queue
UNION ALL
SELECT queue, kind, 'running', count(*) FROM synergon_task WHERE state = 'running' GROUP BY kind, queue
UNION ALL
SELECT queue, kind, state, count FROM synergon_tally WHERE count > 0
