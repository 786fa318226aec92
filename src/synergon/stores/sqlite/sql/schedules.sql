-- name: add_schedule
INSERT INTO synergon_schedule ({ScheduleRow})
VALUES ($1, CAST($2 AS BLOB), $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, CAST($18 AS BLOB))
ON CONFLICT (name) DO NOTHING

-- name: due_schedules
SELECT {ScheduleRow} FROM synergon_schedule
WHERE due_at <= :now AND (is_declared = 0 OR name IN (SELECT value FROM json_each($1)))
ORDER BY due_at, name LIMIT $2

-- name: schedules_named
SELECT {ScheduleRow} FROM synergon_schedule WHERE name IN (SELECT value FROM json_each($1))

-- name: schedules
SELECT {ScheduleRow} FROM synergon_schedule ORDER BY name

-- name: write_schedules
-- $1 is `next_at` of the row that is replaced; $2 and the following are {ScheduleRow}.
UPDATE synergon_schedule
SET definition = CAST($3 AS BLOB), is_declared = $4, anchor = $5, next_at = $7, due_at = $8, paused_at = $9, last_task_id = $10,
    last_at = $11, fired = $12, missed = $13, skipped = $14, skips_in_row = $15, skipped_since = $16, reason = $17,
    reason_at = $18, past = CAST($19 AS BLOB)
WHERE name = $2 AND next_at IS $1

-- name: delete_schedule
DELETE FROM synergon_schedule WHERE name = $1

-- name: next_schedules
SELECT name, due_at FROM synergon_schedule
WHERE due_at IS NOT NULL AND (is_declared = 0 OR name IN (SELECT value FROM json_each($1))) ORDER BY due_at LIMIT 100

-- name: live_of
SELECT id FROM synergon_task WHERE id IN (SELECT value FROM json_each($1))
