-- name: bonds
-- The lines and groups of these tasks, live or final, for those who lock them first.
SELECT kind, limit_key, group_id, after_group FROM {schema}.task WHERE id = ANY ($1)
UNION
SELECT kind, limit_key, group_id, NULL FROM {schema}.history WHERE id = ANY ($1)

-- name: prune
-- What was restored from another server may be ahead of the count of this one; that nobody has read such a thing says
-- nothing about what is to come, so it is told as nothing.
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history
    WHERE state = $1 AND state <> 'succeeded' AND finished_at < now() - $2::bigint * interval '1 microsecond'
    ORDER BY finished_at LIMIT $3 FOR UPDATE SKIP LOCKED
))
RETURNING queue, kind, CASE
    WHEN ended_in <= pg_snapshot_xmax(pg_current_snapshot()) THEN ended_in::text::bigint ELSE 0
END AS ended_no

-- name: prune_succeeded
-- They are looked at in the order of the transactions that ended them. It is not quite that of their ages: what took
-- long to commit is younger than it seems, so more are looked at than are taken, for else a few of those would hold up
-- all the rest. What ended by a clock that was put back since then is passed over; and so that a history which was
-- restored on another server does not wait for its count of transactions, what is ahead of that is looked at, too.
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
-- Who counts reads everything, and a sequential scan is the cheapest way.
SET LOCAL enable_seqscan = on

-- name: plan_by_value
-- Lists are asked for in many ways, and which plan is right depends on what is asked for.
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

-- name: get_ended
SELECT {final_record} FROM {schema}.history WHERE id = ANY ($1)
