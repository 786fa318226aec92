-- name: prune
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history WHERE state = $1 AND id = ANY (ARRAY(
        SELECT id FROM {schema}.history
        WHERE state = $1 AND finished_at < now() - $2::bigint * interval '1 microsecond'
        ORDER BY finished_at LIMIT $3
    ))
    ORDER BY id FOR UPDATE
))
RETURNING queue, kind, floor(extract(epoch FROM finished_at) * 1000000)::bigint AS ended_no

-- name: prune_succeeded
DELETE FROM {schema}.history WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.history WHERE state = 'succeeded' AND id = ANY (ARRAY(
        SELECT id FROM {schema}.history
        WHERE state = 'succeeded' AND finished_at < now() - $1::bigint * interval '1 microsecond'
        ORDER BY finished_at LIMIT $2
    ))
    ORDER BY id FOR UPDATE
))
RETURNING queue, kind, floor(extract(epoch FROM finished_at) * 1000000)::bigint AS ended_no

-- name: allow_reading_all
-- Does nothing: this profile does not disable sequential scans.
SELECT 1

-- name: plan_by_value
-- Does nothing: this profile does not force generic plans.
SELECT 1
