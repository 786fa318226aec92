-- name: now
-- The host's clock in whole milliseconds, and never less than the last written moment. If the host's clock has stepped
-- back, time advances by the monotonic clock, a little slower, until the host's clock has caught up. No two commits have
-- one moment, so the moments of final tasks are in commit order.
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
-- Rows of values follow. The last columns are those in which tasks often differ.
INSERT INTO synergon_task (
    kind, queue, state, max_attempts, key, enqueued_at, expires_at, overrides, tags, origin,
    id, payload, priority, run_at, meta
)

-- name: insert_bound
-- `insert` for tasks that join a key queue or a group, wait for a group, are commands, or have requirements.
INSERT INTO synergon_task (
    kind, queue, state, max_attempts, key, enqueued_at, expires_at, overrides, tags, origin,
    limit_key, group_id, after_group, is_command, target, provider, requirements,
    id, payload, priority, run_at, meta
)

-- name: replace
UPDATE synergon_task
SET queue = ?, state = ?, max_attempts = ?, enqueued_at = ?, expires_at = ?, overrides = ?, tags = ?, origin = ?,
    payload = ?, priority = ?, run_at = ?, meta = ?, limit_key = ?, after_group = ?, is_command = ?, target = ?,
    provider = ?, requirements = ?, attempts = 0, crashes = 0, errors = NULL, progress = NULL, reserved_by = NULL,
    reserved_until = NULL, protected_until = NULL
WHERE id = ? AND state <> 'running'

-- name: cancel_requests
SELECT id FROM synergon_task WHERE state = 'running' AND node_id = ? AND cancel_requested = 1
