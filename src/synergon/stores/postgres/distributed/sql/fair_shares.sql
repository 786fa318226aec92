-- name: fair_tags
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT kind, priority, fair_key FROM unnest($1::text[], $2::bigint[], $3::text[]) AS tenant (kind, priority, fair_key)
),
ready_group (kind, queue, is_paused, shard, requirements) AS (
    SELECT asked_kind.kind, queue.name, queue.paused_at IS NOT NULL, shard.number, (
        SELECT requirements FROM {schema}.task
        WHERE state = 'ready' AND shard = shard.number AND kind = asked_kind.kind AND queue = queue.name
        ORDER BY requirements LIMIT 1
    )
    FROM (SELECT DISTINCT kind FROM asked) AS asked_kind CROSS JOIN {schema}.queue
    CROSS JOIN generate_series(0, 7) AS shard (number)
    UNION ALL
    SELECT ready_group.kind, ready_group.queue, ready_group.is_paused, ready_group.shard, (
        SELECT task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.shard = ready_group.shard AND task.kind = ready_group.kind
            AND task.queue = ready_group.queue AND task.requirements > ready_group.requirements
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
            WHERE state = 'ready' AND shard = ready_group.shard AND kind = asked_class.kind AND queue = ready_group.queue
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

-- name: tenants_ahead
WITH RECURSIVE {ahead_ready.ready_group}
SELECT first.fair_key, count(*) AS count
FROM ready_group CROSS JOIN LATERAL (
    SELECT priority, fair_tag, id, fair_key FROM {schema}.task
    WHERE state = 'ready' AND shard = ready_group.shard AND kind = $1 AND queue = ready_group.queue
        AND requirements = ready_group.requirements AND priority >= $2
    ORDER BY priority DESC, fair_tag, id LIMIT $5
) AS first
WHERE ready_group.requirements IS NOT NULL AND first.fair_key IS NOT NULL
    AND (first.priority > $2 OR (first.fair_tag, first.id) < ($3, $4))
GROUP BY first.fair_key
