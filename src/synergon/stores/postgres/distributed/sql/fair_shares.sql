-- name: fair_tags
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT kind, priority, fair_key FROM unnest($1::text[], $2::bigint[], $3::text[]) AS tenant (kind, priority, fair_key)
),
ready_group (kind, queue, shard, requirements) AS (
    SELECT asked_kind.kind, queue.name, shard.number, (
        SELECT requirements FROM {schema}.task
        WHERE state = 'ready' AND shard = shard.number AND kind = asked_kind.kind AND queue = queue.name
        ORDER BY requirements LIMIT 1
    )
    FROM (SELECT DISTINCT kind FROM asked) AS asked_kind CROSS JOIN {schema}.queue
    CROSS JOIN generate_series(0, 7) AS shard (number)
    WHERE queue.paused_at IS NULL
    UNION ALL
    SELECT ready_group.kind, ready_group.queue, ready_group.shard, (
        SELECT task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.shard = ready_group.shard AND task.kind = ready_group.kind
            AND task.queue = ready_group.queue AND task.requirements > ready_group.requirements
        ORDER BY task.requirements LIMIT 1
    )
    FROM ready_group WHERE ready_group.requirements IS NOT NULL
),
smallest AS MATERIALIZED (
    SELECT class.kind, class.priority, min(first.fair_tag) AS fair_tag
    FROM (SELECT DISTINCT kind, priority FROM asked) AS class
    JOIN ready_group ON ready_group.kind = class.kind AND ready_group.requirements IS NOT NULL
    CROSS JOIN LATERAL (
        SELECT fair_tag FROM {schema}.task
        WHERE state = 'ready' AND shard = ready_group.shard AND kind = class.kind AND queue = ready_group.queue
            AND requirements = ready_group.requirements AND priority = class.priority AND fair_tag > 0
        ORDER BY fair_tag LIMIT 1
    ) AS first
    GROUP BY class.kind, class.priority
)
SELECT asked.kind, asked.priority, asked.fair_key, smallest.fair_tag AS smallest_ready, (
    SELECT fair_tag FROM {schema}.task
    WHERE kind = asked.kind AND fair_key = asked.fair_key AND priority = asked.priority AND fair_tag > 0
    ORDER BY fair_tag DESC LIMIT 1
) AS largest_live
FROM asked LEFT JOIN smallest ON smallest.kind = asked.kind AND smallest.priority = asked.priority

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
