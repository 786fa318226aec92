-- Statements with which the rules read and change tasks (`stores.task_primitives.TaskRows`). The fast paths, which
-- bypass the rules, are in `tasks.sql`.

-- name: lock_tasks
SELECT id FROM {schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: running_tasks
SELECT {LiveTask} FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'running' ORDER BY id FOR UPDATE

-- name: live_tasks
SELECT {LiveTask} FROM {schema}.task WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: final_tasks
SELECT {FinalTask} FROM {schema}.history WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: finished_claims
SELECT id, finished_no AS claim_no, state, kind FROM {schema}.history WHERE id = ANY ($1) AND finished_no IS NOT NULL
UNION ALL
SELECT id, finished_no, state, kind FROM {schema}.task WHERE id = ANY ($1) AND finished_no IS NOT NULL

-- name: end
-- Moves rows to the history. Ids and results are parallel arrays, by ascending id.
WITH ended AS (
    DELETE FROM {schema}.task WHERE id = ANY ($1) RETURNING *
)
INSERT INTO {schema}.history ({carried}, state, reason, finished_no, finished_at, result)
SELECT
    {carried}, $3, $4, CASE WHEN $5 THEN claim_no ELSE finished_no END, statement_timestamp(),
    ($2::text[])[width_bucket(id, $1::bigint[])]
FROM ended

-- name: succeed_together
-- Moves tasks that run under these claims, without a cancel request, to the history. Unlike `succeed`, it is one
-- statement of a transaction, and the tasks may have follow-ups. Ids are sorted, so rows are locked by ascending id.
WITH ended AS (
    DELETE FROM {schema}.task
    WHERE id = ANY ($1) AND state || '' = 'running' AND claim_no = ($2::bigint[])[width_bucket(id, $1::bigint[])]
        AND NOT cancel_requested
    RETURNING {carried}
)
INSERT INTO {schema}.history ({carried}, state, finished_no, finished_at, result)
SELECT {carried}, 'succeeded', claim_no, statement_timestamp(), ($3::text[])[width_bucket(id, $1)] FROM ended
RETURNING {SucceededTask}

-- name: tally
INSERT INTO {schema}.tally (queue, kind, state, shard, count)
SELECT queue, kind, state, $5, count FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[])
    AS new (queue, kind, state, count)
ON CONFLICT (queue, kind, state, shard) DO UPDATE SET count = least(tally.count, 1000000000000000) + excluded.count

-- name: release
-- Also releases the permits of the task. `server` remains: it is the server of the last attempt.
UPDATE {schema}.task
SET state = CASE
        WHEN $2::bigint > 0 THEN 'scheduled'
        WHEN $4::text IS NOT NULL OR (limit_key IS NOT NULL AND NOT $6::boolean) THEN 'waiting' ELSE 'ready'
    END,
    limit_key = CASE WHEN $6::boolean THEN NULL ELSE coalesce($4, limit_key) END, holds = NULL, slot = NULL, batch_id = NULL,
    run_at = CASE WHEN $2::bigint IS NULL THEN run_at ELSE now() + $2::bigint * interval '1 microsecond' END,
    node_id = NULL, overdue = false, extended_by = NULL, finished_no = CASE WHEN $3 THEN claim_no ELSE finished_no END,
    protected_until = CASE
        WHEN $5::bigint > 0 THEN greatest(now() + $5::bigint * interval '1 microsecond', protected_until) ELSE protected_until
    END
WHERE id = $1 AND state || '' = 'running'
RETURNING state

-- name: charge
UPDATE {schema}.task
SET errors = coalesce($2, errors), attempts = greatest(attempts - $3, 0), crashes = least(crashes, 2147483646) + $4,
    ended_attempts = coalesce($5, ended_attempts)
WHERE id = $1 AND state || '' = 'running'

-- name: set_server_failures
UPDATE {schema}.task SET server_failures = $2 WHERE id = $1 AND state || '' = 'running'

-- name: set_owner_deaths
UPDATE {schema}.task SET owner_deaths = $2 WHERE id = $1 AND state || '' = 'running'

-- name: set_errors
UPDATE {schema}.task SET errors = $2 WHERE id = $1

-- name: set_ended_attempts
UPDATE {schema}.task SET ended_attempts = $2 WHERE id = $1

-- name: set_requirements
UPDATE {schema}.task SET requirements = $2 WHERE id = $1

-- name: report
UPDATE {schema}.task SET progress = coalesce($3, progress), overdue = overdue OR $4
WHERE id = $1 AND claim_no = $2 AND state || '' = 'running'

-- name: request_cancel
UPDATE {schema}.task SET cancel_requested = true WHERE id = $1 AND state || '' = 'running'

-- name: extend_timeout
UPDATE {schema}.task SET extended_by = least(coalesce(extended_by, 0) + $2, $3)
WHERE id = $1 AND state || '' = 'running'

-- name: set_live_meta
UPDATE {schema}.task SET meta = $2 WHERE id = $1

-- name: set_final_meta
UPDATE {schema}.history SET meta = $2 WHERE id = $1

-- name: delete_live
DELETE FROM {schema}.task WHERE id = $1 AND state <> 'running'

-- name: delete_final
DELETE FROM {schema}.history WHERE id = ANY ($1)

-- name: revive
INSERT INTO {schema}.task ({kept}, finished_no, state, run_at)
SELECT {kept}, finished_no, CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END, now()
FROM {schema}.history WHERE id = ANY ($1) ORDER BY id
ON CONFLICT DO NOTHING
RETURNING id, state

-- name: key_holder
SELECT {KeyHolder} FROM {schema}.task WHERE kind = $1 AND key = $2 FOR UPDATE

-- name: key_holders
SELECT {KeyHolder} FROM {schema}.task WHERE id = ANY (ARRAY(
    SELECT holder.id FROM unnest($1::text[], $2::text[]) AS name (kind, key)
    JOIN {schema}.task AS holder ON holder.kind = name.kind AND holder.key = name.key
))
ORDER BY id FOR UPDATE

-- name: reschedule
UPDATE {schema}.task
SET run_at = due,
    state = CASE WHEN due > clock.now THEN 'scheduled' WHEN limit_key IS NOT NULL THEN 'waiting' ELSE 'ready' END,
    fair_tag = CASE WHEN due > clock.now THEN 0 ELSE fair_tag END, reserved_by = NULL, reserved_until = NULL
FROM (
    SELECT now, coalesce($2::timestamptz, now + $3::bigint * interval '1 microsecond', now) AS due
    FROM (SELECT now() AS now) AS moment
) AS clock
WHERE id = $1 AND state IN ('scheduled', 'ready') AND NOT is_dependent
RETURNING {ChangedTask}

-- name: set_priority
UPDATE {schema}.task SET priority = $2, fair_tag = CASE WHEN priority = $2 THEN fair_tag ELSE 0 END
WHERE id = $1 AND state <> 'running' AND NOT is_command
RETURNING {ChangedTask}

-- name: expired
SELECT {LiveTask} FROM {schema}.task
WHERE expires_at IS NOT NULL AND state <> 'running' AND expires_at <= now()
ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED

-- name: make_due_ready
UPDATE {schema}.task SET state = CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE state = 'scheduled' AND run_at <= now() AND NOT is_dependent
    ORDER BY run_at LIMIT $1 FOR UPDATE SKIP LOCKED
))
RETURNING {ChangedTask}

-- name: next_due_in
SELECT ceil(extract(epoch FROM least(
    (SELECT min(run_at) FROM {schema}.task WHERE state = 'scheduled'),
    (SELECT min(expires_at) FROM {schema}.task WHERE expires_at IS NOT NULL AND state <> 'running'),
    (SELECT min(due_at) FROM {schema}.batch_alarm),
    (SELECT min(backs_off_until) FROM {schema}.server WHERE backs_off_until > now())
) - now()) * 1000000)::bigint

-- name: orphans
SELECT {LiveTask} FROM {schema}.task
WHERE state = 'running' AND (
    node_id = ANY ($1) OR NOT EXISTS (SELECT 1 FROM {schema}.node WHERE node.id = task.node_id)
)
ORDER BY id LIMIT $2 FOR UPDATE {skip locked}
