-- name: add_schedule
INSERT INTO {schema}.schedule ({ScheduleRow})
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
ON CONFLICT (name) DO NOTHING

-- name: due_schedules
SELECT now() AS now, {ScheduleRow} FROM {schema}.schedule
WHERE due_at <= floor(extract(epoch FROM now()) * 1000000)::bigint AND (NOT is_declared OR name = ANY ($1))
ORDER BY due_at, name LIMIT $2 FOR UPDATE {skip locked}

-- name: schedules_named
SELECT {ScheduleRow} FROM {schema}.schedule WHERE name = ANY ($1) ORDER BY name FOR UPDATE

-- name: schedules
SELECT {ScheduleRow} FROM {schema}.schedule ORDER BY name

-- name: write_schedules
UPDATE {schema}.schedule AS old
SET definition = new.definition, is_declared = new.is_declared, anchor = new.anchor, next_at = new.next_at,
    due_at = new.due_at, paused_at = new.paused_at, last_task_id = new.last_task_id, last_at = new.last_at,
    fired = new.fired, missed = new.missed, skipped = new.skipped, skips_in_row = new.skips_in_row,
    skipped_since = new.skipped_since, reason = new.reason, reason_at = new.reason_at, past = new.past
FROM unnest(
    $1::bigint[], $2::text[], $3::text[], $4::boolean[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[],
    $16::bigint[], $17::text[], $18::bigint[], $19::text[]
) AS new (old_next_at, {ScheduleRow})
WHERE old.name = new.name AND old.next_at IS NOT DISTINCT FROM new.old_next_at

-- name: delete_schedule
DELETE FROM {schema}.schedule WHERE name = $1

-- name: next_schedule
SELECT due_at FROM {schema}.schedule
WHERE due_at IS NOT NULL AND (NOT is_declared OR name = ANY ($1)) ORDER BY due_at LIMIT 1

-- name: live_of
SELECT id FROM {schema}.task WHERE id = ANY ($1)
