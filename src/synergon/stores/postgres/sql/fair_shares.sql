-- name: fair_tags
-- For each of these kinds ($1), priorities ($2) and tenants ($3): the smallest tag of the ready tasks of the kind and
-- priority, in queues that are not paused and in paused queues; the largest tag of the live tasks of the kind and
-- priority that are not ready; and the largest tag of the tenant's live tasks. Reads the first task of each ready
-- group, one task of each kind and priority, and one task of each tenant. Locks nothing.
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT kind, priority, fair_key FROM unnest($1::text[], $2::bigint[], $3::text[]) AS tenant (kind, priority, fair_key)
),
ready_group (kind, queue, is_paused, requirements) AS (
    SELECT asked_kind.kind, queue.name, queue.paused_at IS NOT NULL, (
        SELECT requirements FROM {schema}.task
        WHERE state = 'ready' AND kind = asked_kind.kind AND queue = queue.name ORDER BY requirements LIMIT 1
    )
    FROM (SELECT DISTINCT kind FROM asked) AS asked_kind CROSS JOIN {schema}.queue
    UNION ALL
    SELECT ready_group.kind, ready_group.queue, ready_group.is_paused, (
        SELECT task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.kind = ready_group.kind AND task.queue = ready_group.queue
            AND task.requirements > ready_group.requirements
        ORDER BY task.requirements LIMIT 1
    )
    FROM ready_group WHERE ready_group.requirements IS NOT NULL
),
class AS MATERIALIZED (
    SELECT asked_class.kind, asked_class.priority, smallest.ready, smallest.paused, (
        SELECT fair_tag FROM {schema}.task
        WHERE kind = asked_class.kind AND priority = asked_class.priority AND fair_tag > 0 AND state <> 'ready'
        ORDER BY fair_tag DESC LIMIT 1
    ) AS started
    FROM (SELECT DISTINCT kind, priority FROM asked) AS asked_class
    CROSS JOIN LATERAL (
        SELECT
            min(first.fair_tag) FILTER (WHERE NOT ready_group.is_paused) AS ready,
            min(first.fair_tag) FILTER (WHERE ready_group.is_paused) AS paused
        FROM ready_group
        CROSS JOIN LATERAL (
            SELECT fair_tag FROM {schema}.task
            WHERE state = 'ready' AND kind = asked_class.kind AND queue = ready_group.queue
                AND requirements = ready_group.requirements AND priority = asked_class.priority AND fair_tag > 0
            ORDER BY fair_tag LIMIT 1
        ) AS first
        WHERE ready_group.kind = asked_class.kind AND ready_group.requirements IS NOT NULL
    ) AS smallest
)
SELECT
    asked.kind, asked.priority, asked.fair_key, class.ready AS smallest_ready, class.paused AS smallest_paused,
    class.started AS largest_started, (
        SELECT fair_tag FROM {schema}.task
        WHERE kind = asked.kind AND fair_key = asked.fair_key AND priority = asked.priority AND fair_tag > 0
        ORDER BY fair_tag DESC LIMIT 1
    ) AS largest_live
FROM asked JOIN class ON class.kind = asked.kind AND class.priority = asked.priority

-- name: oldest_with_tags
-- The smallest ids of the ready tasks with tags of these ready groups and priorities. Locks nothing. The condition on
-- the tag is written so that only the index of the oldest tasks matches it, and that no other statement uses the index.
SELECT class.kind, class.queue, class.requirements, class.priority, first.id
FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS class (kind, queue, requirements, priority)
CROSS JOIN LATERAL (
    SELECT id FROM {schema}.task
    WHERE state = 'ready' AND kind = class.kind AND queue = class.queue AND requirements = class.requirements
        AND priority = class.priority AND fair_tag >= 1
    ORDER BY id LIMIT $5
) AS first

-- name: untagged_tasks
SELECT id, kind, priority, fair_key, fair_step FROM {schema}.task
WHERE id = ANY ($1) AND state || '' = 'ready' AND fair_key IS NOT NULL AND fair_tag = 0
ORDER BY id

-- name: set_fair_tags
-- The ids are sorted.
UPDATE {schema}.task SET fair_tag = ($2::bigint[])[width_bucket(id, $1::bigint[])] WHERE id = ANY ($1) AND fair_tag = 0

-- name: tenants_ahead
-- The tenants of the ready tasks of a kind that precede a position, at most $5 tasks of each ready group.
WITH RECURSIVE {ahead_ready.ready_group}
SELECT first.fair_key, count(*) AS count
FROM ready_group CROSS JOIN LATERAL (
    SELECT priority, fair_tag, id, fair_key FROM {schema}.task
    WHERE state = 'ready' AND kind = $1 AND queue = ready_group.queue AND requirements = ready_group.requirements
        AND priority >= $2
    ORDER BY priority DESC, fair_tag, id LIMIT $5
) AS first
WHERE ready_group.requirements IS NOT NULL AND first.fair_key IS NOT NULL
    AND (first.priority > $2 OR (first.fair_tag, first.id) < ($3, $4))
GROUP BY first.fair_key
