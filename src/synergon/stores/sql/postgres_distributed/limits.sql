-- name: look
SELECT
    EXISTS (SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now()) AS is_leased,
    ARRAY(
        SELECT room.kind FROM unnest($2::text[]) AS room (kind) WHERE EXISTS (
            SELECT 1 FROM {schema}.queue CROSS JOIN generate_series(0, 7) AS shard (number) CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task
                WHERE state = 'ready' AND shard = shard.number AND kind = room.kind AND queue = queue.name LIMIT 1
            ) AS found
        )
    ) AS kinds

-- name: ready
-- The heads of every shard. LIMIT is a parameter and no expression of the lane, which not every planner takes.
WITH lane AS MATERIALIZED (
    SELECT room.kind, room.count, queue.name AS queue, shard.number AS shard
    FROM unnest($1::text[], $2::integer[]) AS room (kind, count)
    CROSS JOIN {schema}.queue
    CROSS JOIN generate_series(0, 7) AS shard (number)
    WHERE queue.paused_at IS NULL AND ($3::text[] IS NULL OR queue.name = ANY ($3))
)
SELECT found.id, found.priority, lane.kind, found.target, found.server, found.attempts
FROM lane CROSS JOIN LATERAL (
    SELECT id, priority, target, server, attempts FROM {schema}.task
    WHERE state = 'ready' AND shard = lane.shard AND kind = lane.kind AND queue = lane.queue
        AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($5::bigint[])
    ORDER BY priority DESC, id
    LIMIT $4
) AS found

-- name: lock_ready
-- A row that somebody holds is an error at once instead of a wait without end.
SELECT id FROM {schema}.task
WHERE id = ANY ($1) AND state || '' = 'ready' AND (is_command OR NOT EXISTS (
    SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL
))
ORDER BY id FOR UPDATE NOWAIT
