-- name: now
-- The host's clock in whole milliseconds, and never less than what was written before. If the host's clock has stepped
-- back, time goes on from there by the clock that does not step, a little slower, until the host has caught up. No two
-- commits have the same moment: by their moments, ended tasks are in the order of commits.
SELECT
    max(
        CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000,
        clock + 1 + CASE WHEN boot_id = ? THEN max(? - steady, 0) * 9 / 10 ELSE 0 END
    ),
    last_id
FROM synergon_sequence

-- name: advance
UPDATE synergon_sequence SET clock = max(clock, ?), last_id = max(last_id, ?), steady = ?, boot_id = ?

-- name: insert
-- Followed by rows of values. The last columns are those in which tasks often differ.
INSERT INTO synergon_task (
    kind, queue, state, max_attempts, key, enqueued_at, expires_at, overrides, tags, origin,
    id, payload, priority, run_at, meta
)

-- name: insert_bound
-- The same for tasks that stand in a line, belong to a group, wait for one, are commands, or requirements something.
INSERT INTO synergon_task (
    kind, queue, state, max_attempts, key, enqueued_at, expires_at, overrides, tags, origin,
    limit_key, group_id, after_group, is_command, target, provider, requirements,
    id, payload, priority, run_at, meta
)

-- name: key_holder
SELECT id, state, limit_key FROM synergon_task WHERE kind = ? AND key = ?

-- name: replace
UPDATE synergon_task
SET queue = ?, state = ?, max_attempts = ?, enqueued_at = ?, expires_at = ?, overrides = ?, tags = ?, origin = ?,
    payload = ?, priority = ?, run_at = ?, meta = ?, limit_key = ?, after_group = ?, is_command = ?, target = ?,
    provider = ?, requirements = ?, attempts = 0, crashes = 0, errors = NULL, progress = NULL, reserved_by = NULL,
    reserved_until = NULL, protected_until = NULL
WHERE id = ? AND state <> 'running'

-- name: running
SELECT id, claim_no, kind, queue, cancel_requested, is_command, limit_key, group_id FROM synergon_task
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'running'

-- name: finished
-- What became of a claim that its owner has settled before.
SELECT state, kind FROM synergon_history WHERE id = :id AND finished_no = :claim_no
UNION ALL
SELECT state, kind FROM synergon_task WHERE id = :id AND finished_no = :claim_no

-- name: end
-- One statement for a whole batch of pairs [id, result]: starting a statement costs more than its rows do.
INSERT INTO synergon_history (
    id, kind, queue, state, reason, priority, run_at, payload, result, attempts, max_attempts, crashes, claim_no,
    finished_no, node_id, server, key, cancel_requested, overdue, enqueued_at, started_at, finished_at, expires_at,
    overrides, tags, meta, progress, errors, limit_key, group_id, is_command, target, provider, requirements
)
SELECT
    task.id, kind, queue, ?, ?, priority, run_at, payload, CAST(json_extract(ended.value, '$[1]') AS BLOB), attempts,
    max_attempts, crashes, claim_no, CASE WHEN ? THEN claim_no ELSE finished_no END, node_id, server, task.key,
    cancel_requested, overdue, enqueued_at, started_at, ?, expires_at, overrides, tags, meta, progress, errors,
    limit_key, group_id, is_command, target, provider, requirements
FROM json_each(?) AS ended CROSS JOIN synergon_task AS task
WHERE task.id = json_extract(ended.value, '$[0]')

-- name: forget
DELETE FROM synergon_task WHERE id IN (SELECT value FROM json_each(?))

-- name: memberships
SELECT queue, kind, limit_key, group_id FROM synergon_task WHERE id IN (SELECT value FROM json_each(?))

-- name: tally
INSERT INTO synergon_tally (queue, kind, state, count) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, kind, state) DO UPDATE SET count = count + excluded.count

-- name: untally
UPDATE synergon_tally SET count = count - ? WHERE queue = ? AND kind = ? AND state = ?

-- name: set_progress
UPDATE synergon_task SET progress = ? WHERE id = ? AND claim_no = ? AND state = 'running'

-- name: set_overdue
UPDATE synergon_task SET overdue = 1 WHERE id = ? AND claim_no = ? AND state = 'running'

-- name: is_running
SELECT 1 FROM synergon_task WHERE id = ? AND claim_no = ? AND state = 'running'

-- name: errors
SELECT errors, attempts, crashes FROM synergon_task WHERE id = ?

-- name: set_errors
UPDATE synergon_task SET errors = ? WHERE id = ?

-- name: release
-- Back among the tasks that may run, at `run_at`. It holds nothing any more; its server stays, as the last one.
UPDATE synergon_task
SET state = ?, run_at = coalesce(?, run_at), node_id = NULL, overdue = 0,
    finished_no = CASE WHEN ? THEN claim_no ELSE finished_no END, holds = NULL, slot = NULL
WHERE id = ? AND state = 'running'

-- name: protect
UPDATE synergon_task SET protected_until = max(coalesce(protected_until, 0), ?) WHERE id = ? AND state = 'running'

-- name: charge
UPDATE synergon_task SET attempts = max(attempts - ?, 0), crashes = crashes + ? WHERE id = ? AND state = 'running'

-- name: cancel_requests
SELECT id FROM synergon_task WHERE state = 'running' AND node_id = ? AND cancel_requested = 1

-- name: due
SELECT id, kind, limit_key FROM synergon_task WHERE state = 'scheduled' AND run_at <= ? ORDER BY run_at LIMIT ?

-- name: make_ready
UPDATE synergon_task SET state = CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'scheduled'

-- name: expired
SELECT id FROM synergon_task
WHERE expires_at IS NOT NULL AND state <> 'running' AND expires_at <= ? ORDER BY expires_at LIMIT ?

-- name: next_moment
SELECT min(moment) FROM (
    SELECT min(run_at) AS moment FROM synergon_task WHERE state = 'scheduled'
    UNION ALL
    SELECT min(expires_at) FROM synergon_task WHERE expires_at IS NOT NULL AND state <> 'running'
    UNION ALL
    SELECT min(backs_off_until) FROM synergon_server WHERE backs_off_until > ?
)
