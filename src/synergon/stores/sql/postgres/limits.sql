-- name: declared_limits
SELECT name, declared FROM {schema}.task_limit WHERE name = ANY ($1)

-- name: declare_limit
-- Two who say the same at once do it once.
INSERT INTO {schema}.task_limit (name, declared, value, every, burst) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, value = excluded.value, every = excluded.every, burst = excluded.burst
WHERE task_limit.declared <> excluded.declared

-- name: set_limit
UPDATE {schema}.task_limit SET value = $2 WHERE name = $1

-- name: limits
SELECT name, value, every, burst FROM {schema}.task_limit ORDER BY name

-- name: prefixes
-- The names that may cover servers.
SELECT name FROM {schema}.task_limit WHERE value IS NOT NULL AND name NOT LIKE 'key:%' AND name NOT LIKE 'kind:%'

-- name: holdings
SELECT holds, provider, CASE WHEN slot IS NOT NULL THEN server END AS server, slot FROM {schema}.task
WHERE holds IS NOT NULL

-- name: used_limits
SELECT holds, CASE WHEN slot IS NOT NULL THEN server END AS address, count(*) FROM {schema}.task
WHERE holds IS NOT NULL GROUP BY 1, 2

-- name: used_lines
SELECT kind, state, count(*) FROM {schema}.task
WHERE limit_key IS NOT NULL AND after_group IS NULL AND state IN ('running', 'waiting') GROUP BY kind, state

-- name: look
-- Whether the node has a lease, and which of these kinds have ready tasks at all. Nothing is locked.
SELECT
    EXISTS (SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now()) AS is_leased,
    ARRAY(
        SELECT room.kind FROM unnest($2::text[]) AS room (kind) WHERE EXISTS (
            SELECT 1 FROM {schema}.queue CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task WHERE state = 'ready' AND kind = room.kind AND queue = queue.name LIMIT 1
            ) AS found
        )
    ) AS kinds

-- name: ready
-- The first ready tasks of some kinds, in open queues; without locks.
WITH lane AS MATERIALIZED (
    SELECT room.kind, room.count, queue.name AS queue
    FROM unnest($1::text[], $2::integer[]) AS room (kind, count)
    CROSS JOIN {schema}.queue
    WHERE queue.paused_at IS NULL AND ($3::text[] IS NULL OR queue.name = ANY ($3))
)
SELECT found.id, found.priority, lane.kind, found.target, found.server, found.attempts
FROM lane CROSS JOIN LATERAL (
    SELECT id, priority, target, server, attempts FROM {schema}.task
    WHERE state = 'ready' AND kind = lane.kind AND queue = lane.queue
        AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($5::bigint[])
    ORDER BY priority DESC, id
    LIMIT least(lane.count, $4)
) AS found

-- name: ready_commands
-- Commands are for a provider, not for a queue. Those for a server that is not among the open ones, which are $4
-- (provider) and $5 (address), are not even looked at. If there are none of a kind, its servers are not gone through.
-- The state is written so that no index but theirs will do.
SELECT found.id, 0 AS priority, room.kind, found.target, found.server, found.attempts
FROM unnest($1::text[], $2::text[]) AS room (kind, provider) CROSS JOIN LATERAL (
    SELECT 1 FROM {schema}.task WHERE is_command AND state || '' = 'ready' AND kind = room.kind LIMIT 1
) AS one CROSS JOIN LATERAL (
    (
        SELECT id, target, server, attempts FROM {schema}.task
        WHERE is_command AND state || '' = 'ready' AND kind = room.kind AND target IS NULL
            AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($6::bigint[])
        ORDER BY id
        LIMIT $3
    )
    UNION ALL
    SELECT its.id, its.target, its.server, its.attempts
    FROM unnest($4::text[], $5::text[]) AS open (provider, address) CROSS JOIN LATERAL (
        SELECT id, target, server, attempts FROM {schema}.task
        WHERE is_command AND state || '' = 'ready' AND kind = room.kind AND target = open.address
            AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($6::bigint[])
        ORDER BY id
        LIMIT $3
    ) AS its
    WHERE open.provider = room.provider
) AS found

-- name: lease
SELECT id FROM {schema}.node WHERE id = $1 AND leased_until > now() FOR KEY SHARE

-- name: lock_ready
-- Asked again, because the look was a statement of its own; a row that somebody else holds is passed over.
SELECT id FROM {schema}.task
WHERE id = ANY ($1) AND state || '' = 'ready' AND (is_command OR NOT EXISTS (
    SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL
))
ORDER BY id FOR UPDATE SKIP LOCKED

-- name: take_seats
-- The ids are sorted, and each finds its place among them by halving. A join of two short lists, as the planner sees
-- them before it knows how long they are, would go through all of one for each of the other.
UPDATE {schema}.task
SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $1, started_at = now(),
    overdue = false, holds = ($3::text[])[width_bucket(id, $2::bigint[])],
    provider = coalesce(($4::text[])[width_bucket(id, $2)], provider),
    server = coalesce(($5::text[])[width_bucket(id, $2)], server), slot = ($6::integer[])[width_bucket(id, $2)]
WHERE id = ANY ($2) AND state || '' = 'ready'
RETURNING true, task.id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
    limit_key, group_id, task.server, task.slot, priority
