-- name: ready_groups
-- Whether the node is cordoned (NULL if it has no live lease), and the ready groups of these kinds, found by a loose
-- index scan over requirements. Commands come from every queue. Locks nothing.
WITH RECURSIVE ready_group (kind, queue, requirements) AS (
    SELECT asked.kind, queue.name, (
        SELECT requirements FROM {schema}.task
        WHERE state = 'ready' AND kind = asked.kind AND queue = queue.name ORDER BY requirements LIMIT 1
    )
    FROM unnest($2::text[], $3::boolean[]) AS asked (kind, is_command) CROSS JOIN {schema}.queue
    WHERE asked.is_command OR (queue.paused_at IS NULL AND ($4::text[] IS NULL OR queue.name = ANY ($4)))
    UNION ALL
    SELECT ready_group.kind, ready_group.queue, (
        SELECT task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.kind = ready_group.kind AND task.queue = ready_group.queue
            AND task.requirements > ready_group.requirements
        ORDER BY task.requirements LIMIT 1
    )
    FROM ready_group WHERE ready_group.requirements IS NOT NULL
)
SELECT node.is_cordoned, found.kind, found.queue, found.requirements
FROM (SELECT 1) AS always
LEFT JOIN (
    SELECT cordoned_at IS NOT NULL AS is_cordoned FROM {schema}.node WHERE id = $1 AND leased_until > now()
) AS node ON true
LEFT JOIN (SELECT kind, queue, requirements FROM ready_group WHERE requirements IS NOT NULL) AS found ON true

-- name: first_ready
-- The first tasks of these ready groups, in queues that are not paused. Locks nothing. $6: how long a task must have
-- been due before capacity is reserved for it; $7: the node. If $9 is true, also the permits of running tasks.
WITH ready_group AS MATERIALIZED (
    SELECT asked.kind, asked.queue, asked.requirements, asked.count
    FROM unnest($1::text[], $2::text[], $3::text[], $4::integer[]) AS asked (kind, queue, requirements, count)
    JOIN {schema}.queue ON queue.name = asked.queue
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
    WHERE state = 'ready' AND kind = ready_group.kind AND queue = ready_group.queue
        AND requirements = ready_group.requirements
        AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($5::bigint[])
    ORDER BY priority DESC, fair_tag, id
    LIMIT least(ready_group.count, $8)
) AS found
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, CASE WHEN slot IS NOT NULL THEN server END, NULL, NULL, NULL, NULL,
    true, holds, provider, slot
FROM {schema}.task WHERE holds IS NOT NULL AND $9::boolean

-- name: ready_among
-- The tasks of a list that are ready, in queues that are not paused. Locks nothing.
SELECT id, priority, fair_tag, kind, queue, requirements, target, server, attempts, server_failures,
    coalesce(run_at + $4::bigint * interval '1 microsecond' <= now(), false)
        AND (
            reserved_until IS NULL OR reserved_until <= now() OR reserved_by = $5
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = task.reserved_by AND leased_until > now() AND cordoned_at IS NULL
            )
        ) AS may_reserve, units
FROM {schema}.task
WHERE id = ANY ($1) AND state || '' = 'ready' AND id <> ALL ($3::bigint[])
    AND (expires_at IS NULL OR expires_at > now())
    AND ($2::text[] IS NULL OR queue = ANY ($2))
    AND NOT EXISTS (SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL)

-- name: ready_commands
-- Commands belong to a provider, not to a queue. $4 (provider) and $5 (address) are the servers with a free permit;
-- commands for other servers are not read. If a kind has no command, its servers are not searched. The condition on the
-- state is written so that only the index of commands matches it.
SELECT found.id, 0 AS priority, 0 AS fair_tag, asked.kind, found.queue, found.requirements, found.target, found.server,
    found.attempts, found.server_failures,
    coalesce(found.run_at + $7::bigint * interval '1 microsecond' <= now(), false)
        AND (
            found.reserved_until IS NULL OR found.reserved_until <= now() OR found.reserved_by = $8
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = found.reserved_by AND leased_until > now() AND cordoned_at IS NULL
            )
        ) AS may_reserve, found.units
FROM unnest($1::text[], $2::text[]) AS asked (kind, provider) CROSS JOIN LATERAL (
    SELECT 1 FROM {schema}.task WHERE is_command AND state || '' = 'ready' AND kind = asked.kind LIMIT 1
) AS one CROSS JOIN LATERAL (
    (
        SELECT id, queue, requirements, target, server, attempts, server_failures, run_at, reserved_by, reserved_until, units FROM {schema}.task
        WHERE is_command AND state || '' = 'ready' AND kind = asked.kind AND target IS NULL
            AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($6::bigint[])
        ORDER BY id
        LIMIT $3
    )
    UNION ALL
    SELECT its.*
    FROM unnest($4::text[], $5::text[]) AS open (provider, address) CROSS JOIN LATERAL (
        SELECT id, queue, requirements, target, server, attempts, server_failures, run_at, reserved_by, reserved_until, units FROM {schema}.task
        WHERE is_command AND state || '' = 'ready' AND kind = asked.kind AND target = open.address
            AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($6::bigint[])
        ORDER BY id
        LIMIT $3
    ) AS its
    WHERE open.provider = asked.provider
) AS found

-- name: is_cordoned
SELECT cordoned_at IS NOT NULL AS is_cordoned FROM {schema}.node WHERE id = $1 AND leased_until > now()

-- name: take
-- Checks again what an earlier statement has read. Skips locked rows, and those whose requirements have changed. The
-- ids are sorted, and each row finds its permits by binary search in the array: a join with the arrays would become a
-- nested loop, because the planner does not know their length.
UPDATE {schema}.task
SET state = 'running', claim_no = least(claim_no, 4611686018427387903) + 1, attempts = least(attempts, 2147483646) + 1, node_id = $1,
    started_at = greatest(now(), enqueued_at),
    overdue = false, reserved_by = NULL, reserved_until = NULL, holds = ($3::text[])[width_bucket(id, $2::bigint[])],
    provider = coalesce(($4::text[])[width_bucket(id, $2)], provider),
    server = coalesce(($5::text[])[width_bucket(id, $2)], server), slot = ($6::integer[])[width_bucket(id, $2)]
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE id = ANY ($2) AND state || '' = 'ready' AND requirements = ($7::text[])[width_bucket(id, $2)]
        AND (is_command OR NOT EXISTS (
            SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL
        ))
    ORDER BY id FOR UPDATE {skip locked or raise}
))
AND EXISTS (
    SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
)
RETURNING true AS is_open, NULL AS with_requirements, {claim}, CASE WHEN slot IS NOT NULL THEN server END AS server, slot,
    greatest(ceil(extract(epoch FROM protected_until - now()) * 1000000), 0)::bigint AS protected_for,
        greatest(date_part('epoch', now() - run_at) * 1000000, 0)::bigint AS waited, fair_tag, priority

-- name: lead_batch
UPDATE {schema}.task SET batch_id = $1 WHERE id = $1 AND state || '' = 'running'

-- name: take_members
-- The caller holds the lock of the key queue, so that no other transaction changes its waiting tasks.
UPDATE {schema}.task
SET state = 'running', claim_no = least(claim_no, 4611686018427387903) + 1, attempts = least(attempts, 2147483646) + 1, node_id = $1,
    started_at = greatest(now(), enqueued_at), overdue = false, batch_id = $2
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
        SELECT id FROM {schema}.task
        WHERE kind = $3 AND limit_key = $4 AND NOT is_dependent AND state = 'waiting'
            AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
            AND queue = $6 AND requirements = $7 AND (expires_at IS NULL OR expires_at > now())
        ORDER BY priority DESC, id LIMIT $5
    ))
    ORDER BY id FOR UPDATE
))
RETURNING true AS is_open, NULL AS with_requirements, {claim}, NULL AS server, NULL AS slot,
    CASE WHEN protected_until > now() THEN ceil(extract(epoch FROM protected_until - now()) * 1000000)::bigint ELSE 0 END
        AS protected_for,
        greatest(date_part('epoch', now() - run_at) * 1000000, 0)::bigint AS waited, fair_tag, priority

-- name: reserve
-- Changes nothing if another live node has reserved capacity for the task, or if the requirements ($4) or the queue
-- ($5) of the task have changed.
UPDATE {schema}.task SET reserved_by = $2, reserved_until = now() + $3::bigint * interval '1 microsecond'
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE id = $1 AND state || '' = 'ready' AND requirements = $4 AND queue = $5 AND (
            reserved_until IS NULL OR reserved_until <= now() OR reserved_by = $2
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = task.reserved_by AND leased_until > now() AND cordoned_at IS NULL
            )
        )
        AND (expires_at IS NULL OR expires_at > now())
        AND NOT EXISTS (SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL)
    FOR UPDATE {skip locked or raise}
))
RETURNING id

-- name: release_reservation
UPDATE {schema}.task SET reserved_by = NULL, reserved_until = NULL
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = $1 AND reserved_by = $2 FOR UPDATE {skip locked or raise}
))
RETURNING id

-- name: requirement_texts
-- The distinct requirements of the ready tasks of a kind, in queues that are not paused.
WITH RECURSIVE {ahead_ready.ready_group}
SELECT DISTINCT ready_group.requirements FROM ready_group JOIN {schema}.queue ON queue.name = ready_group.queue
WHERE ready_group.requirements IS NOT NULL AND queue.paused_at IS NULL AND ($2::text[] IS NULL OR queue.name = ANY ($2))

-- name: first_in_ready_groups
-- The first ready tasks of a kind with one of the requirements in $2, after priority $4, tag $5 and id $6 in claim
-- order, in queues that are not paused. Two selects, because the index is in descending order of priority and in
-- ascending order of tag and id.
SELECT {live_record}, CASE WHEN reserved_until > now() THEN reserved_by END AS reserved_by
FROM {schema}.task
WHERE id = ANY (ARRAY(
    SELECT found.id
    FROM unnest($2::text[]) AS ready_group (requirements)
    CROSS JOIN {schema}.queue
    CROSS JOIN LATERAL (
        (
            SELECT id, priority, fair_tag FROM {schema}.task
            WHERE state = 'ready' AND kind = $1 AND queue = queue.name AND requirements = ready_group.requirements
                AND priority = $4 AND (fair_tag, id) > ($5, $6) AND (expires_at IS NULL OR expires_at > now())
            ORDER BY fair_tag, id LIMIT $7
        )
        UNION ALL
        (
            SELECT id, priority, fair_tag FROM {schema}.task
            WHERE state = 'ready' AND kind = $1 AND queue = queue.name AND requirements = ready_group.requirements
                AND priority < $4 AND (expires_at IS NULL OR expires_at > now())
            ORDER BY priority DESC, fair_tag, id LIMIT $7
        )
    ) AS found
    WHERE queue.paused_at IS NULL AND ($3::text[] IS NULL OR queue.name = ANY ($3))
    ORDER BY found.priority DESC, found.fair_tag, found.id LIMIT $7
))

-- name: position_of
SELECT kind, state, priority, fair_tag, limit_key, is_dependent FROM {schema}.task
WHERE id = $1 AND state || '' IN ('ready', 'waiting')

-- name: ahead_ready
-- How many ready tasks of a kind precede a position: reads the first tasks of every ready group, and counts those
-- before the position.
WITH RECURSIVE ready_group (queue, requirements) AS (
    SELECT queue.name, (
        SELECT requirements FROM {schema}.task
        WHERE state = 'ready' AND kind = $1 AND queue = queue.name ORDER BY requirements LIMIT 1
    )
    FROM {schema}.queue
    UNION ALL
    SELECT ready_group.queue, (
        SELECT task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.kind = $1 AND task.queue = ready_group.queue AND task.requirements > ready_group.requirements
        ORDER BY task.requirements LIMIT 1
    )
    FROM ready_group WHERE ready_group.requirements IS NOT NULL
)
SELECT count(*) FROM (
    SELECT 1 FROM ready_group CROSS JOIN LATERAL (
        SELECT priority, fair_tag, id FROM {schema}.task
        WHERE state = 'ready' AND kind = $1 AND queue = ready_group.queue AND requirements = ready_group.requirements
            AND priority >= $2
        ORDER BY priority DESC, fair_tag, id LIMIT $5
    ) AS first
    WHERE ready_group.requirements IS NOT NULL AND (first.priority > $2 OR (first.fair_tag, first.id) < ($3, $4))
    LIMIT $5
) AS before

-- name: ahead_in_key_queue
WITH key_queue AS MATERIALIZED (
    SELECT $1::text AS kind, $2::text AS limit_key, $3::text AS state
)
SELECT count(*) FROM (
    SELECT 1 FROM key_queue CROSS JOIN LATERAL (
        SELECT priority, id FROM {schema}.task
        WHERE kind = key_queue.kind AND limit_key = key_queue.limit_key AND NOT is_dependent AND state = key_queue.state
            AND priority >= $4
        ORDER BY priority DESC, id LIMIT $6
    ) AS first
    WHERE first.priority > $4 OR first.id < $5
) AS before

-- name: ahead_dependent
-- How many of the tasks that wait for dependencies precede a position. Reads them without an ordered index, because the
-- statement is rarely used.
SELECT count(*) FROM (
    SELECT 1 FROM {schema}.task
    WHERE is_dependent AND kind = $1 AND limit_key IS NOT DISTINCT FROM $2
        AND (priority > $3 OR (priority = $3 AND id < $4))
    LIMIT $5
) AS before
