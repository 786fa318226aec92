-- name: lock_targets
-- The key queues and groups of these tasks, live or final, which the caller locks next.
SELECT kind, limit_key, group_id, after_group FROM {schema}.task WHERE id = ANY ($1)
UNION
SELECT kind, limit_key, group_id, NULL FROM {schema}.history WHERE id = ANY ($1)

-- name: prune
-- A history that was restored from another server may have numbers above this server's transaction count. They say
-- nothing about later transactions, so they are reported as 0.
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE state = $1 AND state <> 'succeeded' AND finished_at < now() - $2::bigint * interval '1 microsecond'
    ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED
))
RETURNING queue, kind, CASE
    WHEN ended_in <= pg_snapshot_xmax(pg_current_snapshot()) THEN ended_in::text::bigint ELSE 0
END AS ended_no

-- name: prune_succeeded
-- Reads tasks in the order of the transactions that ended them, which is nearly the order of their ages. A task of a
-- long transaction is younger than its number suggests, so more rows are read than are deleted: otherwise a few such
-- tasks would block all others. Tasks with an end in the future (the clock was set back) are skipped. Numbers above this
-- server's transaction count are read too, because a history that was restored on another server has them.
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE finished_at < now() - $1::bigint * interval '1 microsecond' AND id = ANY (ARRAY(
        (
            SELECT id FROM {schema}.history WHERE reason IS NULL AND finished_at <= now()
            ORDER BY ended_in, id LIMIT 4 * $2
        )
        UNION ALL
        (
            SELECT id FROM {schema}.history
            WHERE reason IS NULL AND ended_in > pg_snapshot_xmax(pg_current_snapshot())
            ORDER BY ended_in, id LIMIT $2
        )
    ))
    LIMIT $2 FOR UPDATE SKIP LOCKED
))
RETURNING queue, kind, CASE
    WHEN ended_in <= pg_snapshot_xmax(pg_current_snapshot()) THEN ended_in::text::bigint ELSE 0
END AS ended_no

-- name: pause_queue
INSERT INTO {schema}.queue (name, paused_at) VALUES ($1, now())
ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE queue.paused_at IS NULL

-- name: resume_queue
UPDATE {schema}.queue SET paused_at = NULL WHERE name = $1 AND paused_at IS NOT NULL

-- name: queues
SELECT name, paused_at FROM {schema}.queue ORDER BY name

-- name: allow_reading_all
-- Counting reads all rows, and a sequential scan is the cheapest way.
SET LOCAL enable_seqscan = on

-- name: plan_by_value
-- Filters differ from call to call, and the right plan depends on them.
SET LOCAL plan_cache_mode = auto

-- name: counts
SELECT queue, kind, state, count(*) FROM {schema}.task GROUP BY queue, kind, state
UNION ALL
SELECT queue, kind, state, sum(count)::bigint FROM {schema}.tally GROUP BY queue, kind, state HAVING sum(count) <> 0

-- name: live_records
-- Followed by conditions.
SELECT {live_record}, CASE WHEN reserved_until > now() THEN reserved_by END AS reserved_by FROM {schema}.task

-- name: final_records
-- Followed by conditions.
SELECT {final_record} FROM {schema}.history

-- name: get_live
SELECT {live_record}, CASE WHEN reserved_until > now() THEN reserved_by END AS reserved_by
FROM {schema}.task WHERE id = ANY ($1)

-- name: get_final
SELECT {final_record} FROM {schema}.history WHERE id = ANY ($1)
