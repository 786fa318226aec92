-- name: lock_targets
-- The key queues and groups of these tasks, live or final. The caller locks them next.
SELECT id, kind, limit_key, group_id, has_dependents FROM {schema}.task WHERE id = ANY ($1)
UNION ALL
SELECT id, kind, limit_key, group_id, false FROM {schema}.history WHERE id = ANY ($1)

-- part: pruned
-- What pruning returns. If the history was restored from another server, its transaction numbers may exceed this
-- server's count. Such a number is not comparable with later transactions, and is returned as 0.
id, queue, kind, state, has_dependencies, CASE
    WHEN ended_in <= pg_snapshot_xmax(pg_current_snapshot()) THEN ended_in::text::bigint ELSE 0
END AS ended_no

-- part: unneeded
-- The tasks of a group or a flow are pruned together. A task that a live task depends on is kept.
group_id IS NULL AND NOT EXISTS (
    SELECT 1 FROM {schema}.dependency JOIN {schema}.task ON task.id = dependency.task_id
    WHERE dependency.needs_id = history.id
)

-- name: prune
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE state = $1 AND state <> 'succeeded' AND keep_for IS NULL
        AND finished_at < now() - $2::bigint * interval '1 microsecond'
        AND {unneeded}
    ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED
))
RETURNING {pruned}

-- name: prune_succeeded
-- Reads tasks in the order of the transactions that ended them, which is nearly the order of their ages. A task that a
-- long transaction ended is younger than its number suggests. So four times as many rows are read as are deleted:
-- otherwise a few such tasks would block all others. Tasks with an end in the future (the clock was set back) are
-- skipped. The second part reads numbers above this server's transaction count: a history that was restored from
-- another server has them.
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE finished_at < now() - $1::bigint * interval '1 microsecond' AND id = ANY (ARRAY(
        (
            SELECT id FROM {schema}.history
            WHERE reason IS NULL AND keep_for IS NULL AND finished_at <= now() AND {unneeded}
            ORDER BY ended_in, id LIMIT 4 * $2
        )
        UNION ALL
        (
            SELECT id FROM {schema}.history
            WHERE reason IS NULL AND keep_for IS NULL AND ended_in > pg_snapshot_xmax(pg_current_snapshot()) AND {unneeded}
            ORDER BY ended_in, id LIMIT $2
        )
    ))
    LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING {pruned}

-- name: prune_tasks_of_groups
DELETE FROM {schema}.history WHERE group_id = ANY ($1)
RETURNING {pruned}

-- name: pause_queue
INSERT INTO {schema}.queue (name, paused_at) VALUES ($1, now())
ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE queue.paused_at IS NULL

-- name: resume_queue
UPDATE {schema}.queue SET paused_at = NULL WHERE name = $1 AND paused_at IS NOT NULL

-- name: queues
SELECT name, paused_at FROM {schema}.queue ORDER BY name

-- name: allow_reading_all
-- Allows sequential scans for a count: it reads all rows, and a sequential scan is the cheapest way.
SET LOCAL enable_seqscan = on

-- name: plan_by_value
-- Lets the planner use the parameters: filters differ from call to call, and the best plan depends on them.
SET LOCAL plan_cache_mode = auto

-- name: live_counts
SELECT queue, kind, state, count(*) AS count FROM {schema}.task GROUP BY queue, kind, state

-- name: first_counts
SELECT queue, kind, state, count(*) AS count FROM (SELECT queue, kind, state FROM {schema}.task LIMIT $1) AS first
GROUP BY queue, kind, state

-- name: final_counts
SELECT queue, kind, state, sum(least(count, 1000000000000000))::bigint AS count FROM {schema}.tally
GROUP BY queue, kind, state HAVING sum(count) <> 0

-- name: stored_counts
SELECT counted_at, numbers FROM {schema}.live_count

-- name: store_counts
INSERT INTO {schema}.live_count (one, counted_at, numbers) VALUES (1, $1, $2)
ON CONFLICT (one) DO UPDATE SET counted_at = excluded.counted_at, numbers = excluded.numbers

-- name: live_records
-- The code appends the conditions.
SELECT {live_record}, CASE WHEN reserved_until > now() THEN reserved_by END AS reserved_by FROM {schema}.task

-- name: recent_records
-- The newest live tasks with ids below $1. The code appends the conditions. Reads at most 1000 tasks: a planner whose
-- statistics are older than a backlog would sort all tasks of a state that has an index of its own.
SELECT {live_record}, CASE WHEN reserved_until > now() THEN reserved_by END AS reserved_by
FROM (SELECT * FROM {schema}.task WHERE id < $1::bigint ORDER BY id DESC LIMIT 1000) AS task

-- name: final_records
-- The code appends the conditions.
SELECT {final_record} FROM {schema}.history

-- name: ended_records
-- The code appends the conditions. `number` is the position in the order of ends.
SELECT {final_record}, ended_in::text::bigint AS number FROM {schema}.history

-- name: live_positions
-- The code replaces the placeholder of the key, and appends the conditions.
SELECT {key} AS key, id FROM {schema}.task

-- name: final_positions
SELECT {key} AS key, id FROM {schema}.history

-- name: get_live
SELECT {live_record}, CASE WHEN reserved_until > now() THEN reserved_by END AS reserved_by
FROM {schema}.task WHERE id = ANY ($1)

-- name: get_final
SELECT {final_record} FROM {schema}.history WHERE id = ANY ($1)

-- name: keeps
-- The distinct values of `keep_for`, each found by one step in the index.
WITH RECURSIVE found AS (
    SELECT min(keep_for) AS keep_for FROM {schema}.history WHERE keep_for IS NOT NULL
    UNION ALL
    SELECT (SELECT min(history.keep_for) FROM {schema}.history AS history WHERE history.keep_for > found.keep_for) FROM found
    WHERE found.keep_for IS NOT NULL
)
SELECT keep_for FROM found WHERE keep_for IS NOT NULL

-- name: prune_by_keep_for
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE keep_for = $1 AND finished_at < now() - $1::bigint * interval '1 microsecond'
        AND {unneeded}
    ORDER BY finished_at LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING {pruned}

-- name: oldest_ready
-- A loose index scan, which jumps from one ready group to the next. Reads two tasks of each group: the first in claim
-- order, and the first with the lowest priority.
WITH RECURSIVE ready_group AS (
    (
        SELECT kind, queue, requirements FROM {schema}.task
        WHERE state = 'ready' ORDER BY kind, queue, requirements LIMIT 1
    )
    UNION ALL
    SELECT following.* FROM ready_group CROSS JOIN LATERAL (
        SELECT task.kind, task.queue, task.requirements FROM {schema}.task
        WHERE task.state = 'ready'
            AND (task.kind, task.queue, task.requirements) > (ready_group.kind, ready_group.queue, ready_group.requirements)
        ORDER BY task.kind, task.queue, task.requirements LIMIT 1
    ) AS following
)
SELECT ready_group.queue, ready_group.kind, min(least(first.run_at, last.run_at)) AS due_at
FROM ready_group
CROSS JOIN LATERAL (
    SELECT task.run_at FROM {schema}.task
    WHERE task.state = 'ready' AND task.kind = ready_group.kind AND task.queue = ready_group.queue
        AND task.requirements = ready_group.requirements
    ORDER BY task.priority DESC, task.fair_tag, task.id LIMIT 1
) AS first
CROSS JOIN LATERAL (
    SELECT task.priority FROM {schema}.task
    WHERE task.state = 'ready' AND task.kind = ready_group.kind AND task.queue = ready_group.queue
        AND task.requirements = ready_group.requirements
    ORDER BY task.priority, task.fair_tag DESC, task.id DESC LIMIT 1
) AS lowest
CROSS JOIN LATERAL (
    SELECT task.run_at FROM {schema}.task
    WHERE task.state = 'ready' AND task.kind = ready_group.kind AND task.queue = ready_group.queue
        AND task.requirements = ready_group.requirements AND task.priority = lowest.priority
    ORDER BY task.fair_tag, task.id LIMIT 1
) AS last
GROUP BY ready_group.queue, ready_group.kind

-- name: failures
SELECT kind, count(*) AS count FROM (
    SELECT kind FROM {schema}.history
    WHERE state = 'failed' AND state <> 'succeeded' AND finished_at >= now() - $1::bigint * interval '1 microsecond'
    ORDER BY finished_at DESC LIMIT $2
) AS latest GROUP BY kind

-- name: overdue
SELECT count(*) FROM {schema}.task WHERE state = 'running' AND overdue
