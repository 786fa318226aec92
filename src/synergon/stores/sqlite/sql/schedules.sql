-- name: add_schedule
INSERT INTO synergon_schedule ({ScheduleRow}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO NOTHING

-- name: due_schedules
SELECT {ScheduleRow} FROM synergon_schedule
WHERE due_at <= :now AND (is_declared = 0 OR name IN (SELECT value FROM json_each(:declared)))
ORDER BY due_at, name LIMIT :limit

-- name: schedules_named
SELECT {ScheduleRow} FROM synergon_schedule WHERE name IN (SELECT value FROM json_each(?))

-- name: schedules
SELECT {ScheduleRow} FROM synergon_schedule ORDER BY name

-- name: write_schedule
UPDATE synergon_schedule
SET definition = ?, is_declared = ?, anchor = ?, next_at = ?, due_at = ?, paused_at = ?, last_task_id = ?, last_at = ?,
    fired = ?, missed = ?, skipped = ?, skips_in_row = ?, skipped_since = ?, reason = ?, reason_at = ?
WHERE name = ? AND next_at IS ?

-- name: delete_schedule
DELETE FROM synergon_schedule WHERE name = ?

-- Several, because a row whose name is not UTF-8 is left out.
-- name: next_schedules
SELECT name, due_at FROM synergon_schedule
WHERE due_at IS NOT NULL AND (is_declared = 0 OR name IN (SELECT value FROM json_each(?))) ORDER BY due_at LIMIT 100

-- name: live_of
SELECT id FROM synergon_task WHERE id IN (SELECT value FROM json_each(?))
