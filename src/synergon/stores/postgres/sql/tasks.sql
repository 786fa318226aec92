-- name: now
SELECT now()

-- name: begin_task_transaction
SELECT now(), current_setting('transaction_read_only') = 'on' AS is_read_only
FROM set_config('idle_in_transaction_session_timeout', $1, true)

-- name: secret
SELECT value FROM {schema}.meta WHERE name = 'secret'

-- name: keep_first_secret
INSERT INTO {schema}.meta SELECT 'first_secret', value FROM {schema}.meta WHERE name = 'secret' ON CONFLICT DO NOTHING

-- name: replace_secret
UPDATE {schema}.meta SET value = gen_random_uuid()::text || gen_random_uuid()::text WHERE name = 'secret'

-- name: identity
SELECT value FROM {schema}.meta WHERE name IN ('first_secret', 'secret') ORDER BY name LIMIT 1

-- name: whereabouts
SELECT current_database(), to_regclass($1) IS NOT NULL

-- name: database_id
SELECT value FROM {schema}.meta WHERE name = 'database_id'

-- name: begin_call
SAVEPOINT synergon_call

-- name: undo_call
ROLLBACK TO SAVEPOINT synergon_call

-- name: end_call
RELEASE SAVEPOINT synergon_call

-- name: notify
SELECT pg_notify($1, $2)

-- name: insert
-- Ids are given in the order of the arrays. The moment is the statement's: the transaction may be a caller's own, and
-- may have begun long ago.
INSERT INTO {schema}.task (
    kind, queue, state, priority, run_at, payload, max_attempts, key, enqueued_at, expires_at, overrides, tags, meta,
    origin, requirements
)
SELECT
    kind, queue, CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END, priority, due, payload, max_attempts, key,
    clock.now, clock.now + expires_in * interval '1 microsecond', overrides,
    CASE WHEN tags IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(tags::json)) END, meta, origin, requirements
FROM (SELECT statement_timestamp() AS now) AS clock
CROSS JOIN unnest(
    $1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::text[], $7::integer[], $8::text[],
    $9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[]
) WITH ORDINALITY AS new (
    kind, queue, priority, run_at, delay, payload, max_attempts, key, expires_in, overrides, tags, meta, origin,
    requirements, position
)
CROSS JOIN LATERAL (
    SELECT coalesce(run_at, clock.now + delay * interval '1 microsecond', clock.now) AS due
) AS moment
ORDER BY position
RETURNING id, state

-- name: insert_bare
-- The same for a single task that is due now and has no options: what it has not got costs time, too.
INSERT INTO {schema}.task (kind, queue, state, priority, run_at, payload, max_attempts, enqueued_at, origin, requirements)
VALUES ($1, $2, 'ready', $3, statement_timestamp(), $4, $5, statement_timestamp(), $6, $7)
RETURNING id

-- name: insert_bound
-- The same for tasks that stand in a line ($21: where they begin there), belong to a group, wait for one, or are for a
-- certain server.
INSERT INTO {schema}.task (
    kind, queue, state, priority, run_at, payload, max_attempts, key, enqueued_at, expires_at, overrides, tags, meta,
    origin, requirements, limit_key, group_id, after_group, is_command, target, provider
)
SELECT
    kind, queue,
    CASE
        WHEN after_group IS NOT NULL THEN 'waiting'
        WHEN due > clock.now THEN 'scheduled'
        WHEN limit_key IS NOT NULL THEN $21
        ELSE 'ready'
    END,
    priority, due, payload, max_attempts, key, clock.now, clock.now + expires_in * interval '1 microsecond', overrides,
    CASE WHEN tags IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(tags::json)) END, meta, origin, requirements,
    limit_key, group_id, after_group, is_command, target, provider
FROM (SELECT statement_timestamp() AS now) AS clock
CROSS JOIN unnest(
    $1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::text[], $7::integer[], $8::text[],
    $9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[],
    $17::bigint[], $18::boolean[], $19::text[], $20::text[]
) WITH ORDINALITY AS new (
    kind, queue, priority, run_at, delay, payload, max_attempts, key, expires_in, overrides, tags, meta, origin,
    requirements, limit_key, group_id, after_group, is_command, target, provider, position
)
CROSS JOIN LATERAL (
    SELECT coalesce(run_at, clock.now + delay * interval '1 microsecond', clock.now) AS due
) AS moment
ORDER BY position
RETURNING id, state

-- name: insert_keyed
INSERT INTO {schema}.task (
    kind, queue, state, priority, run_at, payload, max_attempts, key, enqueued_at, expires_at, overrides, tags, meta,
    origin, requirements, limit_key, group_id, after_group, is_command, target, provider
)
SELECT
    kind, queue,
    CASE
        WHEN after_group IS NOT NULL THEN 'waiting'
        WHEN due > clock.now THEN 'scheduled'
        WHEN limit_key IS NOT NULL THEN $21
        ELSE 'ready'
    END,
    priority, due, payload, max_attempts, key, clock.now, clock.now + expires_in * interval '1 microsecond', overrides,
    CASE WHEN tags IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(tags::json)) END, meta, origin, requirements,
    limit_key, group_id, after_group, is_command, target, provider
FROM (SELECT statement_timestamp() AS now) AS clock
CROSS JOIN unnest(
    $1::text[], $2::text[], $3::bigint[], $4::timestamptz[], $5::bigint[], $6::text[], $7::integer[], $8::text[],
    $9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::bigint[],
    $17::bigint[], $18::boolean[], $19::text[], $20::text[]
) WITH ORDINALITY AS new (
    kind, queue, priority, run_at, delay, payload, max_attempts, key, expires_in, overrides, tags, meta, origin,
    requirements, limit_key, group_id, after_group, is_command, target, provider, position
)
CROSS JOIN LATERAL (
    SELECT coalesce(run_at, clock.now + delay * interval '1 microsecond', clock.now) AS due
) AS moment
ORDER BY position
ON CONFLICT (kind, key) WHERE key IS NOT NULL DO NOTHING
RETURNING id, state

-- name: add_queues
INSERT INTO {schema}.queue (name) SELECT DISTINCT unnest($1::text[]) ON CONFLICT DO NOTHING

-- name: lock_keys
SELECT name FROM {schema}.lock_row WHERE name = 'keys' FOR UPDATE

-- name: replace
UPDATE {schema}.task
SET queue = $2, priority = $3, payload = $6, max_attempts = $7, enqueued_at = clock.now, run_at = clock.due,
    state = CASE
        WHEN $14::bigint IS NOT NULL THEN 'waiting'
        WHEN clock.due > clock.now THEN 'scheduled'
        WHEN $13::text IS NOT NULL THEN $18
        ELSE 'ready'
    END,
    expires_at = clock.now + $8::bigint * interval '1 microsecond', overrides = $9, tags = $10, meta = $11,
    origin = $12, limit_key = $13, after_group = $14, is_command = $15, target = $16, provider = $17,
    requirements = $19, reserved_by = NULL, reserved_until = NULL, protected_until = NULL,
    attempts = 0, crashes = 0, errors = NULL, progress = NULL, server = NULL
FROM (
    SELECT now, coalesce($4::timestamptz, now + $5::bigint * interval '1 microsecond', now) AS due
    FROM (SELECT statement_timestamp() AS now) AS moment
) AS clock
WHERE id = $1 AND state <> 'running'
RETURNING state

-- name: claim
-- One index probe per kind and open queue, and one more for ready tasks that require something of their own: if there are
-- any, nothing is taken, and it is told of which kinds they are. Tasks that nobody asked for are never looked at. The
-- guard is the state in the UPDATE; skipping locked rows only keeps claimers out of each other's way. A statement may see
-- a task that was stored after its own moment: nothing has started before it was there.
-- Here and below, where rows are named by id, `state || ''` keeps the planner from walking through a partial index of
-- all rows in that state, which it likes to do when it believes that there are few.
WITH ready_group AS MATERIALIZED (
    SELECT kind_request.kind, kind_request.count, kind_request.rank, queue.name AS queue, (
        SELECT true FROM {schema}.task
        WHERE state = 'ready' AND kind = kind_request.kind AND queue = queue.name AND requirements > '' LIMIT 1
    ) AS has_requirements
    FROM unnest($2::text[], $3::integer[], $6::integer[]) AS kind_request (kind, count, rank)
    CROSS JOIN {schema}.queue
    WHERE queue.paused_at IS NULL AND ($5::text[] IS NULL OR queue.name = ANY ($5))
),
demanding AS MATERIALIZED (
    SELECT DISTINCT kind FROM ready_group WHERE has_requirements
),
candidate AS MATERIALIZED (
    SELECT found.id, ready_group.kind, ready_group.rank, found.priority, ready_group.count
    FROM ready_group CROSS JOIN LATERAL (
        SELECT id, priority FROM {schema}.task
        WHERE state = 'ready' AND kind = ready_group.kind AND queue = ready_group.queue AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now())
        ORDER BY priority DESC, id
        LIMIT least(ready_group.count, $4)
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM demanding)
),
picked AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, priority, rank, count, row_number() OVER (PARTITION BY kind ORDER BY priority DESC, id) AS row_no
        FROM candidate
    ) AS ranked
    WHERE row_no <= count
    ORDER BY priority DESC, rank, id
    LIMIT $4
),
lease AS MATERIALIZED (
    SELECT cordoned_at IS NULL AS is_open FROM {schema}.node WHERE id = $1 AND leased_until > now() FOR KEY SHARE
),
claimed AS (
    UPDATE {schema}.task
    SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $1,
        started_at = greatest(now(), enqueued_at), overdue = false, reserved_by = NULL, reserved_until = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND state || '' = 'ready'
        AND EXISTS (SELECT 1 FROM lease WHERE is_open)
    RETURNING id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, requirements,
        greatest(ceil(extract(epoch FROM protected_until - now()) * 1000000), 0)::bigint AS protected_for, priority
)
SELECT (SELECT is_open FROM lease) AS is_open, ARRAY(SELECT kind FROM demanding) AS demanding, claimed.*
FROM (SELECT 1) AS always LEFT JOIN claimed ON true

-- name: claim_kind
-- The same for tasks of one kind, which is what a node asks for that was told of a task: the time that such a statement
-- takes goes to its parts, and these are half as many. Where something stands against it nothing comes back: a lease that
-- is over, a node that is cordoned, ready tasks that require something of their own. `claim` tells which.
UPDATE {schema}.task
SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $1,
    started_at = greatest(now(), enqueued_at), overdue = false, reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT found.id
    FROM {schema}.queue CROSS JOIN LATERAL (
        SELECT id, priority FROM {schema}.task
        WHERE state = 'ready' AND kind = $2 AND queue = queue.name AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now())
        ORDER BY priority DESC, id
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE queue.paused_at IS NULL AND ($4::text[] IS NULL OR queue.name = ANY ($4))
    ORDER BY found.priority DESC, found.id
    LIMIT $3
))
AND EXISTS (
    SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
)
AND NOT EXISTS (
    SELECT 1 FROM {schema}.queue CROSS JOIN LATERAL (
        SELECT 1 FROM {schema}.task
        WHERE state = 'ready' AND kind = $2 AND queue = queue.name AND requirements > '' LIMIT 1
    ) AS demanding
    WHERE queue.paused_at IS NULL AND ($4 IS NULL OR queue.name = ANY ($4))
)
RETURNING true AS is_open, NULL AS demanding, id, claim_no, kind, queue, payload, attempts, max_attempts, crashes,
    overrides, tags, meta, origin, limit_key, group_id, server, slot, requirements,
    CASE WHEN protected_until > now() THEN ceil(extract(epoch FROM protected_until - now()) * 1000000)::bigint ELSE 0 END
        AS protected_for, priority

-- name: claim_more
-- The same where there is more than is asked for, of every kind as many as of all together: no CTE keeps the rows, and
-- none is counted, which saves a seventh of the time. Nothing comes back where something stands against it, too: a lease
-- that is over, a node that is cordoned, ready tasks that require something of their own. `claim` tells which.
UPDATE {schema}.task
SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $1,
    started_at = greatest(now(), enqueued_at), overdue = false, reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT found.id
    FROM unnest($2::text[], $3::integer[]) AS kind_request (kind, rank)
    CROSS JOIN {schema}.queue
    CROSS JOIN LATERAL (
        SELECT id, priority FROM {schema}.task
        WHERE state = 'ready' AND kind = kind_request.kind AND queue = queue.name AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now())
        ORDER BY priority DESC, id
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE queue.paused_at IS NULL AND ($5::text[] IS NULL OR queue.name = ANY ($5))
    ORDER BY found.priority DESC, kind_request.rank, found.id
    LIMIT $4
))
AND EXISTS (
    SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
)
AND NOT EXISTS (
    SELECT 1 FROM unnest($2) AS kind_request (kind) CROSS JOIN {schema}.queue CROSS JOIN LATERAL (
        SELECT 1 FROM {schema}.task
        WHERE state = 'ready' AND kind = kind_request.kind AND queue = queue.name AND requirements > '' LIMIT 1
    ) AS demanding
    WHERE queue.paused_at IS NULL AND ($5 IS NULL OR queue.name = ANY ($5))
)
RETURNING true AS is_open, NULL AS demanding, id, claim_no, kind, queue, payload, attempts, max_attempts, crashes,
    overrides, tags, meta, origin, limit_key, group_id, server, slot, requirements,
    CASE WHEN protected_until > now() THEN ceil(extract(epoch FROM protected_until - now()) * 1000000)::bigint ELSE 0 END
        AS protected_for, priority

-- name: running_bonds
SELECT id, kind, limit_key, group_id FROM {schema}.task WHERE id = ANY ($1)

-- name: succeed
-- Plain successes in one step: those that still run under these claims, that nobody wants cancelled, that are in no
-- group or line, and whose server was well anyway. The ids are sorted, and the rows are locked in that order, because the
-- index is read in it; so are the rows that count. $2 and $3: one claim and one result for each, or one for all.
WITH ended AS (
    DELETE FROM {schema}.task
    WHERE id = ANY ($1) AND state || '' = 'running'
        AND claim_no = ($2::bigint[])[CASE WHEN cardinality($2) = 1 THEN 1 ELSE width_bucket(id, $1::bigint[]) END]
        AND NOT cancel_requested AND limit_key IS NULL AND group_id IS NULL
        AND (slot IS NULL OR NOT EXISTS (
            SELECT 1 FROM {schema}.server WHERE server.provider = task.provider AND server.address = task.server
                AND (failures > 0 OR backoffs > 0 OR backs_off_until IS NOT NULL)
        ))
    RETURNING id, kind, queue, priority, run_at, payload, attempts, max_attempts, crashes, claim_no, node_id, server, key,
        cancel_requested, overdue, enqueued_at, started_at, expires_at, overrides, tags, meta, progress, errors,
        limit_key, is_command, target, provider, requirements
),
moved AS (
    INSERT INTO {schema}.history (
        id, kind, queue, state, priority, run_at, payload, result, attempts, max_attempts, crashes, claim_no,
        finished_no, node_id, server, key, cancel_requested, overdue, enqueued_at, started_at, finished_at, expires_at,
        overrides, tags, meta, progress, errors, limit_key, is_command, target, provider, requirements
    )
    SELECT
        id, kind, queue, 'succeeded', priority, run_at, payload,
        ($3::text[])[CASE WHEN cardinality($3) = 1 THEN 1 ELSE width_bucket(id, $1) END], attempts, max_attempts,
        crashes, claim_no, claim_no, node_id, server, key, cancel_requested, overdue, enqueued_at, started_at,
        statement_timestamp(), expires_at, overrides, tags, meta, progress, errors, limit_key, is_command, target,
        provider, requirements
    FROM ended
    RETURNING id, queue, kind
),
counted AS (
    INSERT INTO {schema}.tally (queue, kind, state, shard, count)
    SELECT queue, kind, 'succeeded', $4, count(*) FROM moved
    GROUP BY queue, kind ORDER BY queue COLLATE "C", kind COLLATE "C"
    ON CONFLICT (queue, kind, state, shard) DO UPDATE SET count = tally.count + excluded.count
)
SELECT kind, array_agg(id) AS ids FROM moved GROUP BY kind

-- name: cancel_requests
SELECT id FROM {schema}.task WHERE state = 'running' AND node_id = $1 AND cancel_requested

-- name: due_bonds
-- The lines and groups of tasks that are due or have expired, for those who lock them first.
SELECT * FROM (
    SELECT kind, limit_key, group_id, after_group FROM {schema}.task
    WHERE state = 'scheduled' AND run_at <= now() ORDER BY run_at LIMIT $1
) AS due
WHERE limit_key IS NOT NULL
UNION
SELECT * FROM (
    SELECT kind, limit_key, group_id, after_group FROM {schema}.task
    WHERE expires_at IS NOT NULL AND state <> 'running' AND expires_at <= now() ORDER BY expires_at LIMIT $1
) AS expired
