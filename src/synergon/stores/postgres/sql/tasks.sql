-- Has the fast paths: of inserts (`insert_bare`, `insert_plain`), claims (`claim`, `claim_kind`) and successes
-- (`succeed`). Also has other statements of the store itself. Statements with which the rules read and change tasks are
-- in `task_rows.sql`.

-- name: now
SELECT pg_catalog.now()

-- name: begin_task_transaction
-- Names are qualified, here and in `now` and `fix_path`, because a transaction for a task function has the search_path
-- of the role.
SELECT pg_catalog.now(),
    pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'on' AS is_read_only
FROM pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true)

-- name: secret
SELECT value FROM {schema}.meta WHERE name = 'secret'

-- name: keep_first_secret
INSERT INTO {schema}.meta SELECT 'first_secret', value FROM {schema}.meta WHERE name = 'secret' ON CONFLICT DO NOTHING

-- name: replace_secret
UPDATE {schema}.meta SET value = gen_random_uuid()::text || gen_random_uuid()::text WHERE name = 'secret'

-- name: identity
SELECT value FROM {schema}.meta WHERE name IN ('first_secret', 'secret') ORDER BY name LIMIT 1

-- name: database_and_schema
SELECT current_database(), to_regclass($1) IS NOT NULL

-- name: fix_path
-- Returns the present search_path, and sets synergon's for this transaction.
WITH found AS MATERIALIZED (
    SELECT pg_catalog.current_setting('search_path') AS path
)
SELECT path, pg_catalog.set_config('search_path', $1, true) FROM found

-- name: restore_path
SELECT pg_catalog.set_config('search_path', $1, true)

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

-- name: insert_plain
-- `{new}` is written for each call by `stores.columns.source`. Ids are assigned in the order of the tasks. The time is
-- that of the statement, because the transaction may be a caller's own, and may have begun long ago.
INSERT INTO {schema}.task ({plain}, state, run_at, enqueued_at, expires_at, tags)
SELECT
    {plain}, CASE WHEN due > clock.now THEN 'scheduled' ELSE 'ready' END, due, clock.now,
    clock.now + expires_in * interval '1 microsecond',
    CASE WHEN tags IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(tags::json)) END
FROM (SELECT statement_timestamp() AS now) AS clock
CROSS JOIN {new}
CROSS JOIN LATERAL (
    SELECT coalesce(run_at, clock.now + delay * interval '1 microsecond', clock.now) AS due
) AS moment
ORDER BY position
RETURNING id, state

-- name: insert_bare
-- A shorter statement than `insert_plain`, for a single task that is due now and has no options: each unneeded column
-- costs time.
INSERT INTO {schema}.task ({bare}, state, run_at, enqueued_at)
VALUES ({bare.values from $1}, 'ready', statement_timestamp(), statement_timestamp())
RETURNING id

-- name: insert_bound
-- A longer statement than `insert_plain`, for tasks that have a limit key ($1 is the first state of such a task),
-- belong to a group, have dependencies, are for a certain server, or have a key. A task whose key is taken, by a live
-- task or by a hold, is not inserted.
INSERT INTO {schema}.task ({bound}, state, run_at, enqueued_at, expires_at, tags)
SELECT
    {bound},
    CASE
        WHEN is_dependent THEN 'waiting'
        WHEN due > clock.now THEN 'scheduled'
        WHEN limit_key IS NOT NULL THEN $1
        ELSE 'ready'
    END,
    due, clock.now, clock.now + expires_in * interval '1 microsecond',
    CASE WHEN tags IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(tags::json)) END
FROM (SELECT statement_timestamp() AS now) AS clock
CROSS JOIN {new}
CROSS JOIN LATERAL (
    SELECT coalesce(run_at, clock.now + delay * interval '1 microsecond', clock.now) AS due,
        kind AS new_kind, key AS new_key
) AS moment
WHERE new_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM {schema}.key_hold AS hold
    WHERE hold.kind = new_kind AND hold.key = new_key AND hold.until > clock.now
)
ORDER BY position
ON CONFLICT (kind, key) WHERE key IS NOT NULL DO NOTHING
RETURNING id, state

-- name: add_queues
INSERT INTO {schema}.queue (name) SELECT DISTINCT unnest($1::text[]) ON CONFLICT DO NOTHING

-- name: lock_keys
SELECT name FROM {schema}.lock_row WHERE name = 'keys' FOR UPDATE

-- name: replace
-- $6: whether the new task waits for dependencies. $7: its state if it waits for none and is due.
UPDATE {schema}.task
SET {replaced.assigned from $8}, enqueued_at = clock.now, run_at = clock.due,
    state = CASE WHEN $6 THEN 'waiting' WHEN clock.due > clock.now THEN 'scheduled' ELSE $7 END,
    expires_at = clock.now + $4::bigint * interval '1 microsecond', tags = $5,
    reserved_by = NULL, reserved_until = NULL, protected_until = NULL,
    attempts = 0, crashes = 0, owner_deaths = 0, server_failures = 0, errors = NULL, ended_attempts = NULL, progress = NULL,
    server = NULL
FROM (
    SELECT now, coalesce($2::timestamptz, now + $3::bigint * interval '1 microsecond', now) AS due
    FROM (SELECT statement_timestamp() AS now) AS moment
) AS clock
WHERE id = $1 AND state <> 'running'
RETURNING state

-- name: claim
-- Makes one index probe for each kind and each queue that is not paused, and another one for ready tasks with
-- requirements of their own. If there are such tasks, nothing is claimed, and their kinds are returned. Tasks that were
-- not requested are never read. The condition on the state in the UPDATE is the guard; SKIP LOCKED only keeps claims
-- from waiting for each other. A statement may see a task that was stored after the statement's time, so `started_at`
-- is never before `enqueued_at`. Here and below, where rows are named by id, `state || ''` keeps the planner from
-- scanning a partial index of all rows in that state when its statistics say that there are few. A number at its
-- maximum (LAST_CLAIM_NO, LAST_ATTEMPT) is not increased: an overflow would fail the whole claim.
WITH ready_group AS MATERIALIZED (
    SELECT kind_request.kind, kind_request.count, kind_request.rank, queue.name AS queue, (
        SELECT true FROM {schema}.task
        WHERE state = 'ready' AND kind = kind_request.kind AND queue = queue.name AND requirements > '' LIMIT 1
    ) AS has_requirements
    FROM unnest($2::text[], $3::integer[], $6::integer[]) AS kind_request (kind, count, rank)
    CROSS JOIN {schema}.queue
    WHERE queue.paused_at IS NULL AND ($5::text[] IS NULL OR queue.name = ANY ($5))
),
with_requirements AS MATERIALIZED (
    SELECT DISTINCT kind FROM ready_group WHERE has_requirements
),
candidate AS MATERIALIZED (
    SELECT found.id, ready_group.kind, ready_group.rank, found.priority, found.fair_tag, ready_group.count
    FROM ready_group CROSS JOIN LATERAL (
        SELECT id, priority, fair_tag FROM {schema}.task
        WHERE state = 'ready' AND kind = ready_group.kind AND queue = ready_group.queue AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now())
        ORDER BY priority DESC, fair_tag, id
        LIMIT least(ready_group.count, $4)
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE NOT EXISTS (SELECT 1 FROM with_requirements)
),
picked AS MATERIALIZED (
    SELECT id FROM (
        SELECT
            id, priority, fair_tag, rank, count,
            row_number() OVER (PARTITION BY kind ORDER BY priority DESC, fair_tag, id) AS row_no
        FROM candidate
    ) AS ranked
    WHERE row_no <= count
    ORDER BY priority DESC, rank, fair_tag, id
    LIMIT $4
),
lease AS MATERIALIZED (
    SELECT cordoned_at IS NULL AS is_open FROM {schema}.node WHERE id = $1 AND leased_until > now() FOR KEY SHARE
),
claimed AS (
    UPDATE {schema}.task
    SET state = 'running', claim_no = least(claim_no, 4611686018427387903) + 1, attempts = least(attempts, 2147483646) + 1, node_id = $1,
        started_at = greatest(now(), enqueued_at), overdue = false, reserved_by = NULL, reserved_until = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM picked)) AND state || '' = 'ready'
        AND EXISTS (SELECT 1 FROM lease WHERE is_open)
    RETURNING {claim}, CASE WHEN slot IS NOT NULL THEN server END AS server, slot,
        greatest(ceil(extract(epoch FROM protected_until - now()) * 1000000), 0)::bigint AS protected_for,
        greatest(date_part('epoch', now() - run_at) * 1000000, 0)::bigint AS waited, fair_tag, priority
)
SELECT (SELECT is_open FROM lease) AS is_open, ARRAY(SELECT kind FROM with_requirements) AS with_requirements, claimed.*
FROM (SELECT 1) AS always LEFT JOIN claimed ON true

-- name: claim_kind
-- `claim` for tasks of one kind, as a node requests them after a hint. The cost is per plan node, and this plan has
-- half as many nodes. Returns nothing if the lease has ended, the node is cordoned, or ready tasks have requirements of
-- their own; `claim` reports which.
UPDATE {schema}.task
SET state = 'running', claim_no = least(claim_no, 4611686018427387903) + 1, attempts = least(attempts, 2147483646) + 1, node_id = $1,
    started_at = greatest(now(), enqueued_at), overdue = false, reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT found.id
    FROM {schema}.queue CROSS JOIN LATERAL (
        SELECT id, priority, fair_tag FROM {schema}.task
        WHERE state = 'ready' AND kind = $2 AND queue = queue.name AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now())
        ORDER BY priority DESC, fair_tag, id
        LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE queue.paused_at IS NULL AND ($4::text[] IS NULL OR queue.name = ANY ($4))
    ORDER BY found.priority DESC, found.fair_tag, found.id
    LIMIT $3
))
AND EXISTS (
    SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
)
AND NOT EXISTS (
    SELECT 1 FROM {schema}.queue CROSS JOIN LATERAL (
        SELECT 1 FROM {schema}.task
        WHERE state = 'ready' AND kind = $2 AND queue = queue.name AND requirements > '' LIMIT 1
    ) AS with_requirements
    WHERE queue.paused_at IS NULL AND ($4 IS NULL OR queue.name = ANY ($4))
)
RETURNING true AS is_open, NULL AS with_requirements, {claim}, CASE WHEN slot IS NOT NULL THEN server END AS server, slot,
    CASE WHEN protected_until > now() THEN ceil(extract(epoch FROM protected_until - now()) * 1000000)::bigint ELSE 0 END
        AS protected_for,
        greatest(date_part('epoch', now() - run_at) * 1000000, 0)::bigint AS waited, fair_tag, priority

-- name: running_lock_targets
SELECT id, kind, limit_key, group_id, has_dependents FROM {schema}.task WHERE id = ANY ($1)

-- name: succeed
-- Applies plain successes: tasks that run under these claims, without a cancel request, group, key queue or dependents,
-- on a healthy server or none. The ids are sorted, and the index is read in that order, so rows are locked by ascending
-- id. The rows of `tally` are locked in order, too. $2 and $3: claim numbers and results, one for each task or one for
-- all.
WITH ended AS (
    DELETE FROM {schema}.task
    WHERE id = ANY ($1) AND state || '' = 'running'
        AND claim_no = ($2::bigint[])[CASE WHEN cardinality($2) = 1 THEN 1 ELSE width_bucket(id, $1::bigint[]) END]
        AND NOT cancel_requested AND limit_key IS NULL AND group_id IS NULL AND NOT has_dependents
        AND (slot IS NULL OR NOT EXISTS (
            SELECT 1 FROM {schema}.server WHERE server.provider = task.provider AND server.address = task.server
                AND (failures > 0 OR recent > 0 OR backoffs > 0 OR backs_off_until IS NOT NULL)
        ))
    RETURNING {carried}
),
moved AS (
    INSERT INTO {schema}.history ({carried}, state, finished_no, finished_at, result)
    SELECT
        {carried}, 'succeeded', claim_no, statement_timestamp(),
        ($3::text[])[CASE WHEN cardinality($3) = 1 THEN 1 ELSE width_bucket(id, $1) END]
    FROM ended
    RETURNING id, queue, kind
),
counted AS (
    INSERT INTO {schema}.tally (queue, kind, state, shard, count)
    SELECT queue, kind, 'succeeded', $4, count(*) FROM moved
    GROUP BY queue, kind ORDER BY queue COLLATE "C", kind COLLATE "C"
    ON CONFLICT (queue, kind, state, shard) DO UPDATE SET count = least(tally.count, 1000000000000000) + excluded.count
)
SELECT kind, array_agg(id) AS ids FROM moved GROUP BY kind

-- name: requests
SELECT id, cancel_requested, extended_by FROM {schema}.task
WHERE state = 'running' AND node_id = $1 AND (cancel_requested OR extended_by IS NOT NULL)

-- name: due_lock_targets
-- The key queues and groups of tasks that are due or have expired. The caller locks them next.
SELECT * FROM (
    SELECT id, kind, limit_key, group_id, has_dependents FROM {schema}.task
    WHERE state = 'scheduled' AND run_at <= now() ORDER BY run_at LIMIT $1
) AS due
WHERE limit_key IS NOT NULL
UNION
SELECT * FROM (
    SELECT id, kind, limit_key, group_id, has_dependents FROM {schema}.task
    WHERE expires_at IS NOT NULL AND state <> 'running' AND expires_at <= now() ORDER BY expires_at LIMIT $1
) AS expired
UNION
SELECT 0::bigint, kind, limit_key, NULL::bigint, false FROM (
    SELECT kind, limit_key FROM {schema}.batch_alarm WHERE due_at <= now() ORDER BY due_at LIMIT $1
) AS alarm
