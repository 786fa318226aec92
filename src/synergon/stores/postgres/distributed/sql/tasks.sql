-- The statements here replace statements in ../../sql by name, or are added to them. None of them skips locked rows,
-- changes data inside WITH, or notifies other sessions. A transaction that locks several rows first reads without locks
-- and then locks by ascending id, so that transactions cannot deadlock.

-- name: notify
-- Removed: there is no NOTIFY here. A statement without text removes the statement that it replaces.

-- name: succeed
-- Removed, like `claim_kind`: a statement here may change only one table.

-- name: claim_kind

-- name: candidates
-- The first tasks of every shard, merged into claim order. Locks nothing, so a concurrent claim may take them first.
-- LIMIT is a parameter and not an expression over the ready group, because not every planner supports that.
WITH ready_group AS MATERIALIZED (
    SELECT kind_request.kind, kind_request.count, kind_request.rank, queue.name AS queue, shard.number AS shard, (
        SELECT true FROM {schema}.task
        WHERE state = 'ready' AND shard = shard.number AND kind = kind_request.kind AND queue = queue.name AND requirements > ''
        LIMIT 1
    ) AS has_requirements
    FROM unnest($2::text[], $3::integer[], $8::integer[]) AS kind_request (kind, count, rank)
    CROSS JOIN {schema}.queue
    CROSS JOIN generate_series(0, 7) AS shard (number)
    WHERE queue.paused_at IS NULL AND ($5::text[] IS NULL OR queue.name = ANY ($5))
),
with_requirements AS MATERIALIZED (
    SELECT DISTINCT kind FROM ready_group WHERE has_requirements
),
candidate AS MATERIALIZED (
    SELECT found.id, ready_group.kind, ready_group.rank, found.priority, found.fair_tag, ready_group.count
    FROM ready_group CROSS JOIN LATERAL (
        SELECT id, priority, fair_tag FROM {schema}.task
        WHERE state = 'ready' AND shard = ready_group.shard AND kind = ready_group.kind AND queue = ready_group.queue AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($7::bigint[])
        ORDER BY priority DESC, fair_tag, id
        LIMIT $6
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
)
SELECT
    (SELECT cordoned_at IS NULL FROM {schema}.node WHERE id = $1 AND leased_until > now()) AS is_open,
    ARRAY(SELECT kind FROM with_requirements) AS with_requirements, picked.id
FROM (SELECT 1) AS always LEFT JOIN picked ON true

-- name: claim
-- Claims the given tasks that are still ready, and checks again what the statement `candidates` has read. With NOWAIT,
-- a locked row raises an error at once instead of blocking the claim.
UPDATE {schema}.task
SET state = 'running', claim_no = least(claim_no, 4611686018427387903) + 1, attempts = least(attempts, 2147483646) + 1, node_id = $1,
    started_at = greatest(now(), enqueued_at),
    overdue = false, reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE id = ANY ($2) AND state || '' = 'ready' AND requirements = '' AND ($3::text[] IS NULL OR queue = ANY ($3))
        AND (expires_at IS NULL OR expires_at > now())
        AND NOT EXISTS (SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL)
    ORDER BY id FOR UPDATE NOWAIT
))
AND EXISTS (
    SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
)
RETURNING true AS is_open, NULL AS with_requirements, {claim}, CASE WHEN slot IS NOT NULL THEN server END AS server, slot,
    greatest(ceil(extract(epoch FROM protected_until - now()) * 1000000), 0)::bigint AS protected_for,
        greatest(date_part('epoch', now() - run_at) * 1000000, 0)::bigint AS waited, fair_tag, priority
