-- name: bonds
-- The lines and groups of these tasks, live or final, for those who lock them first.
SELECT kind, limit_key, group_id, after_group FROM {schema}.task WHERE id = ANY ($1)
UNION
SELECT kind, limit_key, group_id, NULL FROM {schema}.history WHERE id = ANY ($1)

-- name: live
SELECT id, kind, queue, state, node_id, cancel_requested, attempts, errors, limit_key, group_id FROM {schema}.task
WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: ended
SELECT id, kind, queue, state, key, limit_key FROM {schema}.history WHERE id = ANY ($1) ORDER BY id FOR UPDATE

-- name: request_cancel
UPDATE {schema}.task SET cancel_requested = true WHERE id = $1 AND state || '' = 'running'

-- name: set_errors
UPDATE {schema}.task SET errors = $2 WHERE id = $1

-- name: revive
INSERT INTO {schema}.task (
    id, kind, queue, state, priority, run_at, payload, max_attempts, claim_no, finished_no, key, enqueued_at, overrides,
    tags, meta, errors, limit_key, group_id, is_command, target, provider, requirements
)
SELECT
    id, kind, queue, CASE WHEN limit_key IS NULL THEN 'ready' ELSE 'waiting' END, priority, now(), payload, max_attempts,
    claim_no, finished_no, key, enqueued_at, overrides, tags, meta, errors, limit_key, group_id, is_command, target,
    provider, requirements
FROM {schema}.history WHERE id = $1
ON CONFLICT DO NOTHING
RETURNING state

-- name: key_holder
SELECT id FROM {schema}.task WHERE kind = $1 AND key = $2

-- name: forget
DELETE FROM {schema}.task WHERE id = $1 AND state <> 'running'

-- name: forget_ended
DELETE FROM {schema}.history WHERE id = $1

-- name: reschedule
UPDATE {schema}.task
SET run_at = due,
    state = CASE WHEN due > clock.now THEN 'scheduled' WHEN limit_key IS NOT NULL THEN 'waiting' ELSE 'ready' END,
    reserved_by = NULL, reserved_until = NULL
FROM (
    SELECT now, coalesce($2::timestamptz, now + $3::bigint * interval '1 microsecond', now) AS due
    FROM (SELECT now() AS now) AS moment
) AS clock
WHERE id = $1 AND state IN ('scheduled', 'ready')
RETURNING kind, state, limit_key

-- name: set_priority
UPDATE {schema}.task SET priority = $2 WHERE id = $1 AND state <> 'running' AND NOT is_command
RETURNING kind, state, limit_key

-- name: prune
-- What was restored from another server may be ahead of the count of this one; that nobody has read such a thing says
-- nothing about what is to come, so it is told as nothing.
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE state = $1 AND state <> 'succeeded' AND finished_at < now() - $2::bigint * interval '1 microsecond'
    ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED
))
RETURNING queue, kind, CASE
    WHEN ended_in <= pg_snapshot_xmax(pg_current_snapshot()) THEN ended_in::text::bigint ELSE 0
END

-- name: prune_succeeded
-- They are looked at in the order of the transactions that ended them. It is not quite that of their ages: what took
-- long to commit is younger than it seems, so more are looked at than are taken, for else a few of those would hold up
-- all the rest. What ended by a clock that was put back since then is passed over; and so that a history which was
-- restored on another server does not wait for its count of transactions, what is ahead of that is looked at, too.
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE finished_at < now() - $1::bigint * interval '1 microsecond' AND id = ANY (ARRAY(
        (
            SELECT id FROM {schema}.history WHERE reason IS NULL AND finished_at <= now()
            ORDER BY ended_in, id LIMIT 4 * $2
        )
        UNION ALL
        (
            SELECT id FROM {schema}.history
            WHERE reason IS NULL AND ended_in > pg_snapshot_xmax(pg_current_snapshot())
            ORDER BY ended_in, id LIMIT $2
        )
    ))
    LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING queue, kind, CASE
    WHEN ended_in <= pg_snapshot_xmax(pg_current_snapshot()) THEN ended_in::text::bigint ELSE 0
END

-- name: pause
UPDATE {schema}.queue SET paused_at = now() WHERE name = $1 AND paused_at IS NULL

-- name: resume
UPDATE {schema}.queue SET paused_at = NULL WHERE name = $1 AND paused_at IS NOT NULL

-- name: queues
SELECT name, paused_at FROM {schema}.queue ORDER BY name

-- name: allow_reading_all
-- Who counts reads everything, and a sequential scan is the cheapest way.
SET LOCAL enable_seqscan = on

-- name: plan_by_value
-- Lists are asked for in many ways, and which plan is right depends on what is asked for.
SET LOCAL plan_cache_mode = auto

-- name: counts
SELECT queue, kind, state, count(*) FROM {schema}.task GROUP BY queue, kind, state
UNION ALL
SELECT queue, kind, state, sum(count)::bigint FROM {schema}.tally GROUP BY queue, kind, state HAVING sum(count) <> 0

-- name: get_live
SELECT NULL AS reason, NULL::timestamptz AS finished_at, NULL AS result, task.*,
    CASE WHEN reserved_until > now() THEN reserved_by END AS keeper
FROM {schema}.task WHERE id = ANY ($1)

-- name: get_ended
SELECT * FROM {schema}.history WHERE id = ANY ($1)
