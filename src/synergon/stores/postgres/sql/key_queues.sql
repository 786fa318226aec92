-- name: lock_limits
-- A transaction that has waited for these locks counts tasks in later statements, and so sees what the previous holder
-- wrote.
SELECT name, value, per, starts, burst, by_units, next_at, batch_size, batch_wait, clock_timestamp() AS now
FROM {schema}.task_limit WHERE name = ANY ($1) ORDER BY name FOR UPDATE

-- name: lock_key_queues
-- Locks the limits of all key queues.
SELECT name, value, per, starts, burst, by_units, next_at, batch_size, batch_wait, clock_timestamp() AS now
FROM {schema}.task_limit WHERE name >= 'key:' AND name < 'key;' ORDER BY name FOR UPDATE

-- name: find_no_limit
-- A shared lock: other transactions may also find that a limit is missing, but none may create a limit.
SELECT name FROM {schema}.lock_row WHERE name = 'key_queues' FOR KEY SHARE

-- name: make_limit
SELECT name FROM {schema}.lock_row WHERE name = 'key_queues' FOR UPDATE

-- name: key_queue_counts
-- Here and below, the names of states are read from a table. With constants, the planner may scan the index of all
-- ready or running tasks if its statistics say that there are few. Positions are JSON, because not every database has
-- arrays of arrays.
WITH paused AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL
),
key_queue AS MATERIALIZED (
    SELECT kind, limit_key, 'running' AS running, 'ready' AS ready, 'waiting' AS waiting
    FROM unnest($1::text[], $2::text[]) AS given (kind, limit_key)
)
SELECT
    key_queue.kind, key_queue.limit_key, running.count AS running, ready.count AS ready, ready.in_paused AS ready_in_paused,
    last_ready.position AS last_ready, waiting.positions AS first_waiting
FROM key_queue
CROSS JOIN LATERAL (
    SELECT count(*) FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent
        AND state = key_queue.running
) AS running
CROSS JOIN LATERAL (
    SELECT count(*), count(*) FILTER (WHERE queue IN (SELECT name FROM paused)) AS in_paused FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent AND state = key_queue.ready
) AS ready
LEFT JOIN LATERAL (
    SELECT json_build_array(priority, id) AS position FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent AND state = key_queue.ready
    ORDER BY priority, id DESC LIMIT 1
) AS last_ready ON true
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_array(first.priority, first.id)) AS positions FROM (
        SELECT priority, id FROM {schema}.task
        WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent
            AND state = key_queue.waiting AND queue NOT IN (SELECT name FROM paused)
        ORDER BY priority DESC, id LIMIT $3
    ) AS first
) AS waiting

-- name: next_batches
-- What these key queues have for their next batch. $3 is the size of a batch: no more tasks are read of each state.
WITH paused AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL
),
key_queue AS MATERIALIZED (
    SELECT kind, limit_key, 'ready' AS ready, 'waiting' AS waiting
    FROM unnest($1::text[], $2::text[]) AS given (kind, limit_key)
)
SELECT
    key_queue.kind, key_queue.limit_key, ready.count AS ready, counted.count AS count, counted.since AS since,
    batch_alarm.due_at AS alarm
FROM key_queue
CROSS JOIN LATERAL (
    SELECT count(*) FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent AND state = key_queue.ready
) AS ready
CROSS JOIN LATERAL (
    SELECT count(*) AS count, min(run_at) AS since FROM (
        (
            SELECT run_at FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent
                AND state = key_queue.ready AND queue NOT IN (SELECT name FROM paused)
            LIMIT $3
        )
        UNION ALL
        (
            SELECT run_at FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent
                AND state = key_queue.waiting AND queue NOT IN (SELECT name FROM paused)
            LIMIT $3
        )
    ) AS candidate
) AS counted
LEFT JOIN {schema}.batch_alarm
    ON batch_alarm.kind = key_queue.kind AND batch_alarm.limit_key = key_queue.limit_key

-- name: set_alarms
INSERT INTO {schema}.batch_alarm (kind, limit_key, due_at)
SELECT kind, limit_key, due_at FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS new (kind, limit_key, due_at)
ORDER BY kind, limit_key
ON CONFLICT (kind, limit_key) DO UPDATE SET due_at = excluded.due_at

-- name: delete_alarms
DELETE FROM {schema}.batch_alarm WHERE (kind, limit_key) IN (
    SELECT kind, limit_key FROM unnest($1::text[], $2::text[]) AS old (kind, limit_key)
)

-- name: due_alarms
SELECT kind, limit_key FROM {schema}.batch_alarm WHERE due_at <= now() ORDER BY due_at LIMIT $1

-- name: first_waiting
SELECT id FROM {schema}.task
WHERE kind = $1 AND limit_key = $2 AND NOT is_dependent AND state = 'waiting'
    AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
ORDER BY priority DESC, id LIMIT $3

-- name: excess
WITH key_queue AS MATERIALIZED (
    SELECT $1::text AS kind, $2::text AS limit_key, 'ready' AS ready, 'waiting' AS waiting
)
SELECT task.id FROM key_queue JOIN {schema}.task
    ON task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND NOT task.is_dependent AND task.state = key_queue.ready
WHERE task.id <> ALL (ARRAY(
    SELECT id FROM (
        SELECT id, priority FROM key_queue CROSS JOIN LATERAL (
            SELECT id, priority FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent AND state = key_queue.ready
                AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
            ORDER BY priority DESC, id LIMIT $3
        ) AS ready
        UNION ALL
        SELECT id, priority FROM key_queue CROSS JOIN LATERAL (
            SELECT id, priority FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent AND state = key_queue.waiting
                AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
            ORDER BY priority DESC, id LIMIT $3
        ) AS waiting
    ) AS member
    ORDER BY priority DESC, id LIMIT $3
))

-- name: demote
-- A task whose row is locked is being claimed, and is not changed.
UPDATE {schema}.task SET state = 'waiting', reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'ready' ORDER BY id FOR UPDATE {skip locked}
))
RETURNING {ChangedTask}

-- name: promote
UPDATE {schema}.task SET state = 'ready'
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'waiting' ORDER BY id FOR UPDATE
))
RETURNING id

-- name: promote_all
-- OFFSET 0 makes the planner search one key queue after the other.
UPDATE {schema}.task SET state = 'ready'
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
        SELECT found.id FROM unnest($1::text[], $2::text[]) AS key_queue (kind, limit_key) CROSS JOIN LATERAL (
            SELECT id FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent AND state = 'waiting'
            OFFSET 0
        ) AS found
    ))
    ORDER BY id FOR UPDATE
))
RETURNING {ChangedTask}

-- name: key_queues_of_kind
-- A loose index scan, which jumps from one key queue to the next.
WITH RECURSIVE key_queue (limit_key) AS (
    (
        SELECT limit_key FROM {schema}.task
        WHERE limit_key IS NOT NULL AND NOT is_dependent AND kind = $1 ORDER BY limit_key LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT task.limit_key FROM {schema}.task
        WHERE task.limit_key > key_queue.limit_key AND NOT task.is_dependent AND task.kind = $1
        ORDER BY task.limit_key LIMIT 1
    )
    FROM key_queue WHERE key_queue.limit_key IS NOT NULL
)
SELECT $1::text AS kind, limit_key FROM key_queue
WHERE limit_key IS NOT NULL AND EXISTS (
    SELECT 1 FROM {schema}.task
    WHERE task.kind = $1 AND task.limit_key = key_queue.limit_key AND NOT task.is_dependent
        AND task.state IN ('ready', 'waiting')
)

-- name: key_queues_of_queue
SELECT DISTINCT kind, limit_key FROM {schema}.task
WHERE limit_key IS NOT NULL AND NOT is_dependent AND state IN ('ready', 'waiting') AND queue = $1

-- name: key_queue_rates
-- Uses the current time, not that of the transaction. `state || ''`, here and below, matches only the index of due
-- moments: with another index, and outdated statistics, the planner would scan the due tasks of all key queues.
SELECT
    key_queue.kind, key_queue.limit_key, statement_timestamp() AS now, rate.next_at,
    coalesce(first.run_at <= statement_timestamp(), false) AS is_due, following.run_at AS next_scheduled
FROM unnest($1::text[], $2::text[]) AS key_queue (kind, limit_key)
LEFT JOIN {schema}.rate ON rate.kind = key_queue.kind AND rate.limit_key = key_queue.limit_key
LEFT JOIN LATERAL (
    SELECT run_at FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND state || '' = 'scheduled'
    ORDER BY run_at LIMIT 1
) AS first ON true
LEFT JOIN LATERAL (
    SELECT run_at FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND state || '' = 'scheduled'
        AND run_at > statement_timestamp()
    ORDER BY run_at LIMIT 1
) AS following ON true

-- name: next_start
SELECT next_at FROM {schema}.rate WHERE kind = $1 AND limit_key = $2

-- name: queue_due
-- A task whose row is locked is skipped: the transaction that holds the lock moves it.
UPDATE {schema}.task SET state = 'waiting'
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE kind = $1 AND limit_key = $2 AND state || '' = 'scheduled' AND run_at <= $3 AND NOT is_dependent
    ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING {ChangedTask}

-- name: set_next_starts
INSERT INTO {schema}.rate (kind, limit_key, next_at)
SELECT kind, limit_key, next_at FROM unnest($1::text[], $2::text[], $3::bigint[]) AS new (kind, limit_key, next_at)
ORDER BY kind, limit_key
ON CONFLICT (kind, limit_key) DO UPDATE SET next_at = excluded.next_at

-- name: postpone
UPDATE {schema}.task SET state = 'scheduled', run_at = postponed.run_at
FROM unnest($1::bigint[], $2::timestamptz[]) AS postponed (id, run_at)
WHERE task.id = postponed.id AND task.id = ANY ($1) AND state || '' = 'waiting'
RETURNING task.id, kind, state, limit_key, group_id, fair_key

-- name: schedule_first_waiting
-- Makes the first waiting task of a key queue `scheduled`, due at once. The next `wake` then balances the key queue.
UPDATE {schema}.task SET state = 'scheduled', run_at = statement_timestamp()
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE kind = $1 AND limit_key = $2 AND NOT is_dependent AND state = 'waiting'
        AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT 1
))

-- name: prune_rates
-- The outer statement repeats the condition, because a task may have started after the inner one read the row.
DELETE FROM {schema}.rate WHERE next_at < extract(epoch FROM now()) * 1000000 AND (kind, limit_key) IN (
    SELECT kind, limit_key FROM {schema}.rate
    WHERE next_at < extract(epoch FROM now()) * 1000000 ORDER BY next_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
