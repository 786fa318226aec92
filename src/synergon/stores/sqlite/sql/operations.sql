-- name: live_records
-- Followed by conditions.
SELECT {live_record}, reserved_by FROM synergon_task

-- name: final_records
-- Followed by conditions.
SELECT {final_record} FROM synergon_history

-- name: get_live
SELECT {live_record}, reserved_by FROM synergon_task WHERE id IN (SELECT value FROM json_each(?))

-- name: get_final
SELECT {final_record} FROM synergon_history WHERE id IN (SELECT value FROM json_each(?))

-- name: old_tasks
SELECT id, queue, kind, finished_at FROM synergon_history WHERE state = ? AND finished_at < ? ORDER BY finished_at LIMIT ?

-- name: add_queue
INSERT INTO synergon_queue (name) VALUES (?) ON CONFLICT DO NOTHING

-- name: pause_queue
INSERT INTO synergon_queue (name, paused_at) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE paused_at IS NULL

-- name: resume_queue
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
