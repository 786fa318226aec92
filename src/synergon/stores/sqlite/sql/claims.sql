-- name: next_kind
-- The first kind in alphabetical order, from the given one on, that has ready tasks.
SELECT min(kind) FROM synergon_task WHERE state = 'ready' AND kind >= ?

-- name: groups_of_kind
-- The ready groups of a kind, found by a loose index scan, which jumps from one group to the next.
WITH RECURSIVE ready_queue (queue) AS (
    SELECT min(queue) FROM synergon_task WHERE state = 'ready' AND kind = :kind
    UNION ALL
    SELECT (SELECT min(queue) FROM synergon_task WHERE state = 'ready' AND kind = :kind AND queue > ready_queue.queue)
    FROM ready_queue WHERE ready_queue.queue IS NOT NULL
),
ready_group (queue, requirements) AS (
    SELECT queue, (
        SELECT min(requirements) FROM synergon_task WHERE state = 'ready' AND kind = :kind AND queue = ready_queue.queue
    )
    FROM ready_queue WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (
        SELECT min(requirements) FROM synergon_task
        WHERE state = 'ready' AND kind = :kind AND queue = ready_group.queue AND requirements > ready_group.requirements
    )
    FROM ready_group WHERE ready_group.requirements IS NOT NULL
)
SELECT queue, requirements FROM ready_group WHERE requirements IS NOT NULL

-- name: ready
-- For the fast path of the claim: the first tasks of a ready group, with all columns of a claim.
SELECT {claim}, protected_until, run_at, fair_tag, priority FROM synergon_task
WHERE state = 'ready' AND kind = ? AND queue = ? AND requirements = ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY priority DESC, fair_tag, id
LIMIT ?

-- name: first_ready
SELECT id, priority, fair_tag, kind, queue, requirements, target, server, attempts, server_failures, run_at, reserved_by, reserved_until,
    units
FROM synergon_task
WHERE state = 'ready' AND kind = ? AND queue = ? AND requirements = ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY priority DESC, fair_tag, id
LIMIT ?

-- name: wanted_servers
-- The target servers of the ready commands of a kind, with NULL for commands that any server may run. Takes one index
-- step for each.
WITH RECURSIVE wanted (target) AS (
    SELECT min(target) FROM synergon_task
    WHERE is_command = 1 AND state = 'ready' AND kind = :kind AND target IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(target) FROM synergon_task
        WHERE is_command = 1 AND state = 'ready' AND kind = :kind AND target > wanted.target
    )
    FROM wanted WHERE target IS NOT NULL
)
SELECT NULL WHERE EXISTS (
    SELECT 1 FROM synergon_task WHERE is_command = 1 AND state = 'ready' AND kind = :kind AND target IS NULL
)
UNION ALL
SELECT target FROM wanted WHERE target IS NOT NULL

-- name: ready_commands
SELECT id, priority, fair_tag, kind, queue, requirements, target, server, attempts, server_failures, run_at, reserved_by, reserved_until,
    units
FROM synergon_task
WHERE is_command = 1 AND state = 'ready' AND kind = ? AND target IS ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY id
LIMIT ?

-- name: ready_among
-- The tasks of a list that are ready, in queues that are not paused.
SELECT id, priority, fair_tag, kind, queue, requirements, target, server, attempts, server_failures, run_at, reserved_by, reserved_until,
    units
FROM synergon_task
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'ready' AND (expires_at IS NULL OR expires_at > ?)
    AND queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)

-- name: claim
-- Here and in `take`, a number at its maximum (LAST_CLAIM_NO, LAST_ATTEMPT) is not increased: an overflow would fail
-- the whole claim.
UPDATE synergon_task
SET state = 'running', claim_no = min(claim_no, 4611686018427387903) + 1, attempts = min(attempts, 2147483646) + 1, node_id = ?, started_at = ?, overdue = 0,
    reserved_by = NULL, reserved_until = NULL
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'ready'

-- name: shared_limits
-- The limits whose permits running tasks hold. Key queues have no permits, so their limits are left out.
SELECT name, value, per, starts, burst, by_units, next_at, batch_size, batch_wait FROM synergon_limit
WHERE (value IS NOT NULL OR per IS NOT NULL) AND substr(name, 1, 4) <> 'key:'

-- name: running_permits
-- If `slot` is NULL, `server` is the server of the last attempt, and the task holds no permit of it.
SELECT holds AS limits, provider, iif(slot IS NULL, NULL, server) AS server, slot FROM synergon_task WHERE holds IS NOT NULL

-- name: take
-- :taken is a list of [id, holds, provider, server, slot].
UPDATE synergon_task
SET state = 'running', claim_no = min(claim_no, 4611686018427387903) + 1, attempts = min(attempts, 2147483646) + 1, node_id = :node_id, started_at = :now,
    overdue = 0, reserved_by = NULL, reserved_until = NULL, holds = taken.holds,
    provider = coalesce(taken.provider, synergon_task.provider),
    server = coalesce(taken.server, synergon_task.server), slot = taken.slot
FROM (
    SELECT
        json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS holds,
        json_extract(value, '$[2]') AS provider, json_extract(value, '$[3]') AS server,
        json_extract(value, '$[4]') AS slot
    FROM json_each(:taken)
) AS taken
WHERE synergon_task.id = taken.id AND synergon_task.state = 'ready'
RETURNING {claim}, iif(slot IS NULL, NULL, server) AS server, slot,
    max(coalesce(protected_until, 0) - :now, 0) AS protected_for, max(:now - run_at, 0) AS waited

-- name: lead_batch
UPDATE synergon_task SET batch_id = :id WHERE id = :id AND state = 'running'

-- name: take_members
UPDATE synergon_task
SET state = 'running', claim_no = min(claim_no, 4611686018427387903) + 1, attempts = min(attempts, 2147483646) + 1, node_id = :node_id, started_at = :now,
    overdue = 0, batch_id = :leader
WHERE id IN (
    SELECT id FROM synergon_task
    WHERE kind = :kind AND limit_key = :limit_key AND is_dependent = 0 AND state = 'waiting'
        AND queue NOT IN (SELECT name FROM synergon_queue WHERE paused_at IS NOT NULL)
        AND queue = :queue AND requirements = :requirements AND (expires_at IS NULL OR expires_at > :now)
    ORDER BY priority DESC, id LIMIT :count
)
RETURNING {claim}, NULL AS server, NULL AS slot, max(coalesce(protected_until, 0) - :now, 0) AS protected_for,
    max(:now - run_at, 0) AS waited

-- name: reservation
SELECT reserved_by, reserved_until FROM synergon_task WHERE id = ?

-- name: reserve
UPDATE synergon_task SET reserved_by = ?, reserved_until = ? WHERE id = ? AND state = 'ready'

-- name: release_reservation
UPDATE synergon_task SET reserved_by = NULL, reserved_until = NULL WHERE id = ? AND reserved_by = ?

-- name: position
SELECT kind, state, priority, fair_tag, limit_key, is_dependent FROM synergon_task WHERE id = ? AND state IN ('ready', 'waiting')

-- name: ahead_in_ready_group
-- How many tasks of a ready group precede this position. Each of the three counts stops at the limit.
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE state = 'ready' AND kind = :kind AND queue = :queue AND requirements = :requirements AND priority > :priority
            LIMIT :limit
        )
    ) + (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE state = 'ready' AND kind = :kind AND queue = :queue AND requirements = :requirements AND priority = :priority
                AND fair_tag < :fair_tag
            LIMIT :limit
        )
    ) + (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE state = 'ready' AND kind = :kind AND queue = :queue AND requirements = :requirements AND priority = :priority
                AND fair_tag = :fair_tag AND id < :id
            LIMIT :limit
        )
    )

-- name: ahead_in_key_queue
-- How many tasks of a key queue in one state precede this position. Each of the two counts stops at the limit.
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE kind = :kind AND state = :state AND limit_key = :limit_key AND is_dependent = 0
                AND priority > :priority
            LIMIT :limit
        )
    ) + (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE kind = :kind AND state = :state AND limit_key = :limit_key AND is_dependent = 0
                AND priority = :priority AND id < :id
            LIMIT :limit
        )
    )

-- name: ahead_of_waiting
-- How many waiting tasks of a kind precede this position, in key queues or for dependencies.
SELECT count(*) FROM (
    SELECT 1 FROM synergon_task
    WHERE kind = :kind AND state = 'waiting' AND limit_key IS NOT NULL AND is_dependent = 0
        AND (priority > :priority OR (priority = :priority AND id < :id))
    UNION ALL
    SELECT 1 FROM synergon_task
    WHERE kind = :kind AND is_dependent = 1 AND (priority > :priority OR (priority = :priority AND id < :id))
    LIMIT :limit
)
