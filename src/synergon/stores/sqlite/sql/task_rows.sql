-- name: running_tasks
SELECT {LiveTask} FROM synergon_task WHERE id IN (SELECT value FROM json_each($1)) AND state = 'running'

-- name: live_tasks
SELECT {LiveTask} FROM synergon_task WHERE id IN (SELECT value FROM json_each($1))

-- name: final_tasks
SELECT {FinalTask} FROM synergon_history WHERE id IN (SELECT value FROM json_each($1))

-- name: finished_claims
SELECT id, finished_no AS claim_no, state, kind FROM synergon_history
WHERE id IN (SELECT value FROM json_each($1)) AND finished_no IS NOT NULL
UNION ALL
SELECT id, finished_no, state, kind FROM synergon_task
WHERE id IN (SELECT value FROM json_each($1)) AND finished_no IS NOT NULL

-- name: end
-- Copies a batch of tasks to the history. The last parameter is a list of pairs [id, result].
INSERT INTO synergon_history ({carried}, state, reason, finished_no, finished_at, result)
SELECT {carried}, ?, ?, CASE WHEN ? THEN claim_no ELSE finished_no END, ?, CAST(ended_result AS BLOB)
FROM (
    SELECT json_extract(value, '$[0]') AS ended_id, json_extract(value, '$[1]') AS ended_result FROM json_each(?)
) CROSS JOIN synergon_task
WHERE id = ended_id

-- name: succeed
-- Copies tasks that run under these claims, without a cancel request, to the history. The last parameter is a list of
-- [id, claim number, result].
INSERT INTO synergon_history ({carried}, state, finished_no, finished_at, result)
SELECT {carried}, 'succeeded', claim_no, ?, CAST(ended_result AS BLOB)
FROM (
    SELECT json_extract(value, '$[0]') AS ended_id, json_extract(value, '$[1]') AS ended_no,
        json_extract(value, '$[2]') AS ended_result
    FROM json_each(?)
) CROSS JOIN synergon_task
WHERE id = ended_id AND claim_no = ended_no AND state = 'running' AND cancel_requested = 0
RETURNING {SucceededTask}

-- name: delete_live
DELETE FROM synergon_task WHERE id IN (SELECT value FROM json_each(?))

-- name: delete_final
DELETE FROM synergon_history WHERE id IN (SELECT value FROM json_each(?))

-- name: tally
INSERT INTO synergon_tally (queue, kind, state, count) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, kind, state) DO UPDATE SET count = min(count, 1000000000000000) + excluded.count

-- name: untally
UPDATE synergon_tally SET count = max(count - ?, 0) WHERE queue = ? AND kind = ? AND state = ?

-- name: release
-- Also releases the permits of the task. `server` remains: it is the server of the last attempt.
UPDATE synergon_task
SET state = CASE
        WHEN $2 > 0 THEN 'scheduled' WHEN $4 IS NOT NULL OR (limit_key IS NOT NULL AND NOT $6) THEN 'waiting' ELSE 'ready'
    END,
    run_at = coalesce(:now + $2, run_at), limit_key = CASE WHEN $6 THEN NULL ELSE coalesce($4, limit_key) END,
    node_id = NULL, overdue = 0, extended_by = NULL, holds = NULL, slot = NULL, batch_id = NULL,
    finished_no = CASE WHEN $3 THEN claim_no ELSE finished_no END,
    protected_until = CASE WHEN $5 > 0 THEN max(coalesce(protected_until, 0), :now + $5) ELSE protected_until END
WHERE id = $1 AND state = 'running'
RETURNING state

-- name: charge
UPDATE synergon_task
SET attempts = max(attempts - $3, 0), crashes = min(crashes, 2147483646) + $4, errors = coalesce(CAST($2 AS BLOB), errors),
    ended_attempts = coalesce(CAST($5 AS BLOB), ended_attempts)
WHERE id = $1 AND state = 'running'

-- name: set_server_failures
UPDATE synergon_task SET server_failures = $2 WHERE id = $1 AND state = 'running'

-- name: set_owner_deaths
UPDATE synergon_task SET owner_deaths = $2 WHERE id = $1 AND state = 'running'

-- name: set_errors
UPDATE synergon_task SET errors = CAST($2 AS BLOB) WHERE id = $1

-- name: set_ended_attempts
UPDATE synergon_task SET ended_attempts = CAST($2 AS BLOB) WHERE id = $1

-- name: set_requirements
UPDATE synergon_task SET requirements = $2 WHERE id = $1

-- name: report
UPDATE synergon_task SET progress = coalesce(CAST($3 AS BLOB), progress), overdue = overdue OR $4
WHERE id = $1 AND claim_no = $2 AND state = 'running'

-- name: request_cancel
UPDATE synergon_task SET cancel_requested = 1 WHERE id = $1 AND state = 'running'

-- name: extend_timeout
UPDATE synergon_task SET extended_by = min(coalesce(extended_by, 0) + $2, $3) WHERE id = $1 AND state = 'running'

-- name: set_live_meta
UPDATE synergon_task SET meta = CAST($2 AS BLOB) WHERE id = $1

-- name: set_final_meta
UPDATE synergon_history SET meta = CAST($2 AS BLOB) WHERE id = $1

-- name: revive
INSERT INTO synergon_task ({kept}, finished_no, state, run_at)
SELECT {kept}, finished_no, CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END, ?
FROM synergon_history WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id
ON CONFLICT DO NOTHING
RETURNING {ChangedTask}

-- name: key_holder
SELECT {KeyHolder} FROM synergon_task WHERE kind = $1 AND key = $2

-- name: key_holders
-- $1 is a list of pairs [kind, key].
SELECT {KeyHolder} FROM synergon_task WHERE id IN (
    SELECT task.id FROM json_each($1) AS name CROSS JOIN synergon_task AS task
    WHERE task.kind = json_extract(name.value, '$[0]') AND task.key = json_extract(name.value, '$[1]')
)

-- name: reschedule
UPDATE synergon_task
SET run_at = due, reserved_by = NULL, reserved_until = NULL,
    state = CASE WHEN due > :now THEN 'scheduled' WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END,
    fair_tag = CASE WHEN due > :now THEN 0 ELSE fair_tag END
FROM (SELECT coalesce($2, :now + $3, :now) AS due) AS clock
WHERE id = $1 AND state IN ('scheduled', 'ready') AND is_dependent = 0
RETURNING {ChangedTask}

-- name: set_priority
UPDATE synergon_task SET priority = $2, fair_tag = CASE WHEN priority = $2 THEN fair_tag ELSE 0 END
WHERE id = $1 AND state <> 'running' AND is_command = 0
RETURNING {ChangedTask}

-- name: expired
SELECT {LiveTask} FROM synergon_task
WHERE expires_at IS NOT NULL AND state <> 'running' AND expires_at <= :now ORDER BY expires_at LIMIT $1

-- name: make_due_ready
UPDATE synergon_task SET state = CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END
WHERE state = 'scheduled' AND id IN (
    SELECT id FROM synergon_task WHERE state = 'scheduled' AND run_at <= :now AND is_dependent = 0 ORDER BY run_at LIMIT $1
)
RETURNING {ChangedTask}

-- name: next_due_in
SELECT min(moment) - :now FROM (
    SELECT min(run_at) AS moment FROM synergon_task WHERE state = 'scheduled'
    UNION ALL
    SELECT min(expires_at) FROM synergon_task WHERE expires_at IS NOT NULL AND state <> 'running'
    UNION ALL
    SELECT min(due_at) FROM synergon_batch_alarm
    UNION ALL
    SELECT min(backs_off_until) FROM synergon_server WHERE backs_off_until > :now
)

-- name: orphans
SELECT {LiveTask} FROM synergon_task
WHERE state = 'running' AND (
    node_id IN (SELECT value FROM json_each($1))
    OR NOT EXISTS (SELECT 1 FROM synergon_node WHERE synergon_node.id = synergon_task.node_id)
)
ORDER BY id LIMIT $2
