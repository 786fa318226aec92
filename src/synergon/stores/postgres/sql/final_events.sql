-- name: snapshot
SELECT pg_current_snapshot()::text

-- name: endings
-- $1: the transactions that were under way in the last snapshot; $2 and $3: the position to read from; $4 and $5: the
-- later snapshot to read up to, and the transactions that were under way in it. Successes have no reason, and an index
-- of their own. The caller filters by state: to find a rare state here, one statement would have to scan all other
-- rows.
SELECT * FROM (
    (
        SELECT {event}, ended_in::text::bigint AS number
        FROM {schema}.history
        WHERE reason IS NULL AND ended_in = ANY ($1::text[]::xid8[]) AND (ended_in, id) > ($6::text::xid8, $7)
            AND ended_in <> ALL ($5::text[]::xid8[])
        ORDER BY ended_in, id
        LIMIT $8
    )
    UNION ALL
    (
        SELECT {event}, ended_in::text::bigint
        FROM {schema}.history
        WHERE reason IS NOT NULL AND ended_in = ANY ($1::text[]::xid8[]) AND (ended_in, id) > ($6::text::xid8, $7)
            AND ended_in <> ALL ($5::text[]::xid8[])
        ORDER BY ended_in, id
        LIMIT $8
    )
    UNION ALL
    (
        SELECT {event}, ended_in::text::bigint
        FROM {schema}.history
        WHERE reason IS NULL AND (ended_in, id) > ($2::text::xid8, $3) AND ended_in < $4::text::xid8
            AND ended_in <> ALL ($5::text[]::xid8[])
        ORDER BY ended_in, id
        LIMIT $8
    )
    UNION ALL
    (
        SELECT {event}, ended_in::text::bigint
        FROM {schema}.history
        WHERE reason IS NOT NULL AND (ended_in, id) > ($2::text::xid8, $3) AND ended_in < $4::text::xid8
            AND ended_in <> ALL ($5::text[]::xid8[])
        ORDER BY ended_in, id
        LIMIT $8
    )
) AS found
ORDER BY number, task_id
LIMIT $8

-- name: note_pruned
INSERT INTO {schema}.pruned (state, kind, number) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
ON CONFLICT (state, kind) DO UPDATE SET number = greatest(pruned.number, excluded.number)

-- name: pruned
-- Ignores transaction numbers in the future: with such a number, no reader would get any event.
SELECT coalesce(max(number), 0) FROM {schema}.pruned
WHERE number <= pg_snapshot_xmax(pg_current_snapshot())::text::bigint AND state = ANY ($1) AND ($2::text[] IS NULL OR kind = ANY ($2::text[]))
