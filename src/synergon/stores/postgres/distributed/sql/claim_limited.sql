-- name: ready_groups
WITH RECURSIVE ready_group (kind, queue, shard, requirements) AS (
    SELECT asked.kind, queue.name, shard.number, (
        SELECT requirements FROM {schema}.task
        WHERE state = 'ready' AND shard = shard.number AND kind = asked.kind AND queue = queue.name
        ORDER BY requirements LIMIT 1
    )
    FROM unnest($2::text[], $3::boolean[]) AS asked (kind, is_command) CROSS JOIN {schema}.queue
    CROSS JOIN generate_series(0, 7) AS shard (number)
    WHERE asked.is_command OR (queue.paused_at IS NULL AND ($4::text[] IS NULL OR queue.name = ANY ($4)))
    UNION ALL
    SELECT ready_group.kind, ready_group.queue, ready_group.shard, (
        SELECT task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.shard = ready_group.shard AND task.kind = ready_group.kind
            AND task.queue = ready_group.queue AND task.requirements > ready_group.requirements
        ORDER BY task.requirements LIMIT 1
    )
    FROM ready_group WHERE ready_group.requirements IS NOT NULL
)
SELECT node.is_cordoned, found.kind, found.queue, found.requirements
FROM (SELECT 1) AS always
LEFT JOIN (
    SELECT cordoned_at IS NOT NULL AS is_cordoned FROM {schema}.node WHERE id = $1 AND leased_until > now()
) AS node ON true
LEFT JOIN (SELECT DISTINCT kind, queue, requirements FROM ready_group WHERE requirements IS NOT NULL) AS found ON true

-- name: first_ready
-- The first tasks of each ready group in every shard, and the held permits. LIMIT is a parameter and not an expression
-- over the group, because not every planner supports that. A claim that needs one task of some groups and many of
-- others runs the statement twice.
WITH ready_group AS MATERIALIZED (
    SELECT asked.kind, asked.queue, asked.requirements, asked.count, shard.number AS shard
    FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[]) AS asked (kind, queue, requirements, count)
    JOIN {schema}.queue ON queue.name = asked.queue
    CROSS JOIN generate_series(0, 7) AS shard (number)
    WHERE queue.paused_at IS NULL
)
SELECT found.id, found.priority, found.fair_tag, ready_group.kind, ready_group.queue, ready_group.requirements,
    found.target, found.server, found.attempts, found.server_failures,
    coalesce(found.run_at + $6::bigint * interval '1 microsecond' <= now(), false)
        AND (
            found.reserved_until IS NULL OR found.reserved_until <= now() OR found.reserved_by = $7
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = found.reserved_by AND leased_until > now() AND cordoned_at IS NULL
            )
        ) AS may_reserve, found.units, false AS is_held, NULL AS limits, NULL AS provider, NULL::integer AS slot
FROM ready_group CROSS JOIN LATERAL (
    SELECT id, priority, fair_tag, target, server, attempts, server_failures, run_at, reserved_by, reserved_until, units FROM {schema}.task
    WHERE state = 'ready' AND shard = ready_group.shard AND kind = ready_group.kind AND queue = ready_group.queue
        AND requirements = ready_group.requirements
        AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($5::bigint[])
    ORDER BY priority DESC, fair_tag, id
    LIMIT $8
) AS found
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, CASE WHEN slot IS NOT NULL THEN server END, NULL, NULL, NULL, NULL,
    true, holds, provider, slot
FROM {schema}.task WHERE holds IS NOT NULL AND $9::boolean

-- name: lock_ready
-- Raises an error if another transaction has locked the row.
SELECT id FROM {schema}.task WHERE id = $1 FOR UPDATE NOWAIT

-- name: first_in_ready_groups
SELECT {live_record}, CASE WHEN reserved_until > now() THEN reserved_by END AS reserved_by
FROM {schema}.task
WHERE id = ANY (ARRAY(
    SELECT found.id
    FROM unnest($2::text[]) AS ready_group (requirements)
    CROSS JOIN {schema}.queue
    CROSS JOIN generate_series(0, 7) AS shard (number)
    CROSS JOIN LATERAL (
        (
            SELECT id, priority, fair_tag FROM {schema}.task
            WHERE state = 'ready' AND shard = shard.number AND kind = $1 AND queue = queue.name AND requirements = ready_group.requirements
                AND priority = $4 AND (fair_tag, id) > ($5, $6) AND (expires_at IS NULL OR expires_at > now())
            ORDER BY fair_tag, id LIMIT $7
        )
        UNION ALL
        (
            SELECT id, priority, fair_tag FROM {schema}.task
            WHERE state = 'ready' AND shard = shard.number AND kind = $1 AND queue = queue.name AND requirements = ready_group.requirements
                AND priority < $4 AND (expires_at IS NULL OR expires_at > now())
            ORDER BY priority DESC, fair_tag, id LIMIT $7
        )
    ) AS found
    WHERE queue.paused_at IS NULL AND ($3::text[] IS NULL OR queue.name = ANY ($3))
    ORDER BY found.priority DESC, found.fair_tag, found.id LIMIT $7
))

-- name: ahead_ready
WITH RECURSIVE ready_group (queue, shard, requirements) AS (
    SELECT queue.name, shard.number, (
        SELECT requirements FROM {schema}.task
        WHERE state = 'ready' AND shard = shard.number AND kind = $1 AND queue = queue.name
        ORDER BY requirements LIMIT 1
    )
    FROM {schema}.queue CROSS JOIN generate_series(0, 7) AS shard (number)
    UNION ALL
    SELECT ready_group.queue, ready_group.shard, (
        SELECT task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.shard = ready_group.shard AND task.kind = $1 AND task.queue = ready_group.queue
            AND task.requirements > ready_group.requirements
        ORDER BY task.requirements LIMIT 1
    )
    FROM ready_group WHERE ready_group.requirements IS NOT NULL
)
SELECT count(*) FROM (
    SELECT 1 FROM ready_group CROSS JOIN LATERAL (
        SELECT priority, fair_tag, id FROM {schema}.task
        WHERE state = 'ready' AND shard = ready_group.shard AND kind = $1 AND queue = ready_group.queue AND requirements = ready_group.requirements
            AND priority >= $2
        ORDER BY priority DESC, fair_tag, id LIMIT $5
    ) AS first
    WHERE ready_group.requirements IS NOT NULL AND (first.priority > $2 OR (first.fair_tag, first.id) < ($3, $4))
    LIMIT $5
) AS before
