-- name: now
-- The host's clock in whole milliseconds, but never before the last written moment. If the host's clock has stepped
-- back, time advances by the monotonic clock, a little slower, until the host's clock has caught up. Each commit has a
-- later moment than the one before, so the moments of final tasks are in commit order.
SELECT
    max(
        CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000,
        clock + 1 + CASE WHEN boot_id = ? THEN max(? - steady, 0) * 9 / 10 ELSE 0 END
    ),
    last_id
FROM synergon_sequence

-- name: advance
UPDATE synergon_sequence SET clock = max(clock, ?), last_id = max(last_id, ?), steady = ?, boot_id = ?

-- name: lock
-- Takes the write lock of the file. A caller's transaction takes it before it assigns ids, because the file of issued
-- ids is read under this lock.
UPDATE synergon_sequence SET last_id = last_id

-- name: insert_bare
-- The code appends rows of values. The second line has the columns in which tasks often differ.
INSERT INTO synergon_task (
    state, enqueued_at, {bare.shared},
    id, run_at, {bare.own}
)

-- name: insert_plain
INSERT INTO synergon_task (
    state, enqueued_at, expires_at, tags, {plain.shared},
    id, run_at, {plain.own}
)

-- name: insert_bound
INSERT INTO synergon_task (
    state, enqueued_at, expires_at, tags, {bound.shared},
    id, run_at, {bound.own}
)

-- name: replace
UPDATE synergon_task
SET {replaced.assigned}, state = :state, enqueued_at = :now, expires_at = :expires_at, tags = :tags, run_at = :due,
    attempts = 0, crashes = 0, owner_deaths = 0, server_failures = 0, errors = NULL, ended_attempts = NULL, progress = NULL,
    reserved_by = NULL, reserved_until = NULL, protected_until = NULL
WHERE id = :id AND state <> 'running'

-- name: requests
SELECT id, cancel_requested, extended_by FROM synergon_task
WHERE state = 'running' AND node_id = ? AND (cancel_requested = 1 OR extended_by IS NOT NULL)
