-- name: snapshot
-- Removed: these databases do not report which transactions are under way.

-- name: endings
SELECT found.* FROM unnest($1::text[]) AS wanted (state) CROSS JOIN LATERAL (
    SELECT {event} FROM {schema}.history
    WHERE state = wanted.state AND (finished_at, id) > ($2::timestamptz, $3)
    ORDER BY finished_at, id
    LIMIT $4
) AS found
ORDER BY at, task_id
LIMIT $4

-- name: ended_since
SELECT id, finished_at FROM {schema}.history
WHERE state = ANY ($1) AND finished_at >= $2 AND finished_at <= $3

-- name: endings_of
SELECT {event} FROM {schema}.history
WHERE id = ANY ($1) AND state = ANY ($2)
ORDER BY finished_at, id

-- name: pruned
-- Ignores moments in the future: with such a moment, no reader would get any event.
SELECT coalesce(max(number), 0) FROM {schema}.pruned
WHERE number <= extract(epoch FROM now()) * 1000000 AND state = ANY ($1)
    AND ($2::text[] IS NULL OR kind = ANY ($2::text[]))
