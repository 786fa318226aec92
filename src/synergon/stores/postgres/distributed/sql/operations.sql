-- part: pruned
id, queue, kind, state, has_dependencies, floor(extract(epoch FROM finished_at) * 1000000)::bigint AS ended_no

-- name: prune
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history WHERE state = $1 AND id = ANY (ARRAY(
        SELECT id FROM {schema}.history
        WHERE state = $1 AND keep_for IS NULL AND finished_at < now() - $2::bigint * interval '1 microsecond'
            AND {unneeded}
        ORDER BY finished_at LIMIT $3
    ))
    ORDER BY id FOR UPDATE
))
RETURNING {pruned}

-- name: prune_succeeded
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history WHERE state = 'succeeded' AND id = ANY (ARRAY(
        SELECT id FROM {schema}.history
        WHERE state = 'succeeded' AND keep_for IS NULL AND finished_at < now() - $1::bigint * interval '1 microsecond'
            AND {unneeded}
        ORDER BY finished_at LIMIT $2
    ))
    ORDER BY id FOR UPDATE
))
RETURNING {pruned}

-- name: allow_reading_all
-- Does nothing: this profile does not disable sequential scans.
SELECT 1

-- name: plan_by_value
-- Does nothing: this profile does not force generic plans.
SELECT 1

-- name: prune_by_keep_for
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history WHERE keep_for = $1 AND id = ANY (ARRAY(
        SELECT id FROM {schema}.history
        WHERE keep_for = $1 AND finished_at < now() - $1::bigint * interval '1 microsecond'
            AND {unneeded}
        ORDER BY finished_at LIMIT $2
    ))
    ORDER BY id FOR UPDATE
))
RETURNING {pruned}

-- name: oldest_ready
-- A loose index scan, which jumps from one ready group to the next. Reads two tasks of each group: the first in claim
-- order, and the first with the lowest priority.
WITH RECURSIVE ready_group AS (
    SELECT first.* FROM generate_series(0, 7) AS number CROSS JOIN LATERAL (
        SELECT task.shard, task.kind, task.queue, task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.shard = number
        ORDER BY task.kind, task.queue, task.requirements LIMIT 1
    ) AS first
    UNION ALL
    SELECT following.* FROM ready_group CROSS JOIN LATERAL (
        SELECT task.shard, task.kind, task.queue, task.requirements FROM {schema}.task
        WHERE task.state = 'ready' AND task.shard = ready_group.shard
            AND (task.kind, task.queue, task.requirements) > (ready_group.kind, ready_group.queue, ready_group.requirements)
        ORDER BY task.kind, task.queue, task.requirements LIMIT 1
    ) AS following
)
SELECT ready_group.queue, ready_group.kind, min(least(first.run_at, last.run_at)) AS due_at
FROM ready_group
CROSS JOIN LATERAL (
    SELECT task.run_at FROM {schema}.task
    WHERE task.state = 'ready' AND task.shard = ready_group.shard AND task.kind = ready_group.kind AND task.queue = ready_group.queue
        AND task.requirements = ready_group.requirements
    ORDER BY task.priority DESC, task.fair_tag, task.id LIMIT 1
) AS first
CROSS JOIN LATERAL (
    SELECT task.priority FROM {schema}.task
    WHERE task.state = 'ready' AND task.shard = ready_group.shard AND task.kind = ready_group.kind AND task.queue = ready_group.queue
        AND task.requirements = ready_group.requirements
    ORDER BY task.priority, task.fair_tag DESC, task.id DESC LIMIT 1
) AS lowest
CROSS JOIN LATERAL (
    SELECT task.run_at FROM {schema}.task
    WHERE task.state = 'ready' AND task.shard = ready_group.shard AND task.kind = ready_group.kind AND task.queue = ready_group.queue
        AND task.requirements = ready_group.requirements AND task.priority = lowest.priority
    ORDER BY task.fair_tag, task.id LIMIT 1
) AS last
GROUP BY ready_group.queue, ready_group.kind

-- name: ended_records
SELECT {final_record} FROM {schema}.history
