-- name: snapshot
SELECT pg_current_snapshot()::text

-- name: endings
-- $1: transactions that had not ended when the reading last came by; $2, $3: behind this place; $4, $5: up to a later
-- snapshot, without the transactions that were under way then.
SELECT * FROM (
    (
        SELECT id, kind, queue, state, reason, attempts, node_id, finished_at, tags, ended_in::text::bigint AS number
        FROM {schema}.history
        WHERE ended_in = ANY ($1::text[]::xid8[]) AND (ended_in, id) > ($6::text::xid8, $7) AND state = ANY ($8)
            AND ended_in <> ALL ($5::text[]::xid8[])
        ORDER BY ended_in, id
        LIMIT $9
    )
    UNION ALL
    (
        SELECT id, kind, queue, state, reason, attempts, node_id, finished_at, tags, ended_in::text::bigint
        FROM {schema}.history
        WHERE (ended_in, id) > ($2::text::xid8, $3) AND ended_in < $4::text::xid8 AND state = ANY ($8)
            AND ended_in <> ALL ($5::text[]::xid8[])
        ORDER BY ended_in, id
        LIMIT $9
    )
) AS found
ORDER BY number, id
LIMIT $9

-- name: note_pruned
INSERT INTO {schema}.meta (name, value) VALUES ('pruned:' || $1::text, $2::text)
ON CONFLICT (name) DO UPDATE SET value = greatest(meta.value::bigint, excluded.value::bigint)::text

-- name: pruned
SELECT coalesce(max(value::bigint), 0) FROM {schema}.meta
WHERE name = ANY (ARRAY(SELECT 'pruned:' || state FROM unnest($1::text[]) AS wanted (state)))
