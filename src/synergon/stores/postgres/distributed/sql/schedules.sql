-- name: due_schedules
SELECT {ScheduleRow} FROM {schema}.schedule
WHERE due_at <= $1 AND (NOT is_declared OR name = ANY ($2)) ORDER BY due_at, name LIMIT $3 FOR UPDATE
