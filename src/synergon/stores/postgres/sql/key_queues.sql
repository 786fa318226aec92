-- name: lock_limits
-- A transaction that waits here sees what the previous holder wrote: whatever it counts, it counts by later statements.
SELECT name, value, every, burst FROM {schema}.task_limit WHERE name = ANY ($1) ORDER BY name FOR UPDATE

-- name: lock_key_queues
-- The limits of all key queues.
SELECT name, value, every, burst FROM {schema}.task_limit WHERE name >= 'key:' AND name < 'key;' ORDER BY name FOR UPDATE

-- name: find_no_limit
-- Beside others who find none, and not beside somebody who makes one.
SELECT name FROM {schema}.lock_row WHERE name = 'key_queues' FOR KEY SHARE

-- name: make_limit
SELECT name FROM {schema}.lock_row WHERE name = 'key_queues' FOR UPDATE

-- name: survey
-- How lines stand: how many run, how many are ready, how many of those in paused queues, the last of those, and the
-- first that wait. Here and below the states stand in a table, because the planner likes to walk through the index of all
-- that are ready or running when it believes that there are few.
WITH paused AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL
),
key_queue AS MATERIALIZED (
    SELECT kind, limit_key, 'running' AS running, 'ready' AS ready, 'waiting' AS waiting
    FROM unnest($1::text[], $2::text[]) AS given (kind, limit_key)
)
SELECT
    key_queue.kind, key_queue.limit_key, running.count AS running, ready.count AS ready, ready.paused AS paused,
    last_ready.priority AS last_priority, last_ready.id AS last_id, waiting.priorities, waiting.ids
FROM key_queue
CROSS JOIN LATERAL (
    SELECT count(*) FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND after_group IS NULL AND state = key_queue.running
) AS running
CROSS JOIN LATERAL (
    SELECT count(*), count(*) FILTER (WHERE queue IN (SELECT name FROM paused)) AS paused FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND after_group IS NULL AND state = key_queue.ready
) AS ready
LEFT JOIN LATERAL (
    SELECT priority, id FROM {schema}.task
    WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND after_group IS NULL AND state = key_queue.ready
    ORDER BY priority, id DESC LIMIT 1
) AS last_ready ON true
CROSS JOIN LATERAL (
    SELECT array_agg(first.priority) AS priorities, array_agg(first.id) AS ids FROM (
        SELECT priority, id FROM {schema}.task
        WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND after_group IS NULL AND state = key_queue.waiting
            AND queue NOT IN (SELECT name FROM paused)
        ORDER BY priority DESC, id LIMIT $3
    ) AS first
) AS waiting

-- name: first_waiting
SELECT id FROM {schema}.task
WHERE kind = $1 AND limit_key = $2 AND after_group IS NULL AND state = 'waiting'
    AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
ORDER BY priority DESC, id LIMIT $3

-- name: misplaced
-- The ready tasks of a line that are not among its first $3.
WITH key_queue AS MATERIALIZED (
    SELECT $1::text AS kind, $2::text AS limit_key, 'ready' AS ready, 'waiting' AS waiting
)
SELECT task.id FROM key_queue JOIN {schema}.task
    ON task.kind = key_queue.kind AND task.limit_key = key_queue.limit_key AND task.after_group IS NULL AND task.state = key_queue.ready
WHERE task.id <> ALL (ARRAY(
    SELECT id FROM (
        SELECT id, priority FROM key_queue CROSS JOIN LATERAL (
            SELECT id, priority FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND after_group IS NULL AND state = key_queue.ready
                AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
            ORDER BY priority DESC, id LIMIT $3
        ) AS ready
        UNION ALL
        SELECT id, priority FROM key_queue CROSS JOIN LATERAL (
            SELECT id, priority FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND after_group IS NULL AND state = key_queue.waiting
                AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
            ORDER BY priority DESC, id LIMIT $3
        ) AS waiting
    ) AS member
    ORDER BY priority DESC, id LIMIT $3
))

-- name: demote
-- A claimer is quicker, or is not: one whose row is locked keeps its place.
UPDATE {schema}.task SET state = 'waiting', reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'ready' ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id, kind

-- name: promote
UPDATE {schema}.task SET state = 'ready'
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'waiting' ORDER BY id FOR UPDATE
))
RETURNING id, kind

-- name: promote_key_queues
-- Lines that have no end. OFFSET 0 keeps the look by line, one after the other.
UPDATE {schema}.task SET state = 'ready'
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
        SELECT found.id FROM unnest($1::text[], $2::text[]) AS key_queue (kind, limit_key) CROSS JOIN LATERAL (
            SELECT id FROM {schema}.task
            WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND after_group IS NULL AND state = 'waiting'
            OFFSET 0
        ) AS found
    ))
    ORDER BY id FOR UPDATE
))
RETURNING id, kind

-- name: key_queues_of_kind
-- The lines of a kind that have ready or waiting tasks, by jumping from one to the next in the index.
WITH RECURSIVE key_queue (limit_key) AS (
    (
        SELECT limit_key FROM {schema}.task
        WHERE limit_key IS NOT NULL AND after_group IS NULL AND kind = $1 ORDER BY limit_key LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT task.limit_key FROM {schema}.task
        WHERE task.limit_key > key_queue.limit_key AND task.after_group IS NULL AND task.kind = $1
        ORDER BY task.limit_key LIMIT 1
    )
    FROM key_queue WHERE key_queue.limit_key IS NOT NULL
)
SELECT limit_key FROM key_queue
WHERE limit_key IS NOT NULL AND EXISTS (
    SELECT 1 FROM {schema}.task
    WHERE task.kind = $1 AND task.limit_key = key_queue.limit_key AND task.after_group IS NULL
        AND task.state IN ('ready', 'waiting')
)

-- name: key_queues_of_queue
SELECT DISTINCT kind, limit_key FROM {schema}.task
WHERE limit_key IS NOT NULL AND after_group IS NULL AND state IN ('ready', 'waiting') AND queue = $1

-- name: rates
-- What is remembered of these lines, whether somebody's turn has come, and when the next one comes; all by the clock of
-- now. The index of turns is the only one that says `state || ''`, here and below: with another the planner would walk
-- through all that is due, of any line, when its statistics are of another time.
SELECT
    key_queue.kind, key_queue.limit_key, rate.next_at, awaited.run_at AS awaited,
    coalesce(first.run_at <= statement_timestamp(), false) AS is_due,
    floor(extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS now
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
) AS awaited ON true

-- name: next_start
SELECT next_at FROM {schema}.rate WHERE kind = $1 AND limit_key = $2

-- name: join_key_queue
-- Those of a line whose turn has come. One whose row is locked is moved by its holder.
UPDATE {schema}.task SET state = 'waiting'
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE kind = $1 AND limit_key = $2 AND state || '' = 'scheduled' AND run_at <= $3
    ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id, kind

-- name: charge_rates
INSERT INTO {schema}.rate (kind, limit_key, next_at)
SELECT kind, limit_key, next_at FROM unnest($1::text[], $2::text[], $3::bigint[]) AS new (kind, limit_key, next_at)
ORDER BY kind, limit_key
ON CONFLICT (kind, limit_key) DO UPDATE SET next_at = excluded.next_at

-- name: defer
UPDATE {schema}.task SET state = 'scheduled', run_at = next_start.run_at
FROM unnest($1::bigint[], $2::timestamptz[]) AS next_start (id, run_at)
WHERE task.id = next_start.id AND task.id = ANY ($1) AND state || '' = 'waiting'
RETURNING task.id, kind

-- name: nudge
-- The first that waits in a line comes back at once, and the line is put in order then.
UPDATE {schema}.task SET state = 'scheduled', run_at = statement_timestamp()
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE kind = $1 AND limit_key = $2 AND after_group IS NULL AND state = 'waiting' AND id <> $3
        AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT 1
))

-- name: prune_rates
-- Asked twice: somebody may have started a task between the look and the removal.
DELETE FROM {schema}.rate WHERE next_at < extract(epoch FROM now()) * 1000000 AND (kind, limit_key) IN (
    SELECT kind, limit_key FROM {schema}.rate
    WHERE next_at < extract(epoch FROM now()) * 1000000 ORDER BY next_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
