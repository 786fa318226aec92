-- name: replace_statistics
-- Does not use ON CONFLICT DO UPDATE, for which a producer would need the right to read the numbers.
UPDATE {schema}.statistics AS stored SET numbers = new.numbers
FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[]) AS new ({StatisticsRow})
WHERE stored.span = new.span AND stored.at = new.at AND stored.kind = new.kind AND stored.queue = new.queue
    AND stored.source = new.source

-- name: add_statistics
INSERT INTO {schema}.statistics ({StatisticsRow})
SELECT {StatisticsRow} FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[])
    AS new ({StatisticsRow})
ON CONFLICT (span, at, kind, queue, source) DO NOTHING

-- name: statistics_since
SELECT {StatisticsRow} FROM {schema}.statistics
WHERE span = $1 AND at >= $2 AND ($3::text IS NULL OR kind = $3) AND ($4::text IS NULL OR queue = $4)

-- name: oldest_statistics
SELECT at FROM {schema}.statistics WHERE span = $1 AND at < $2 ORDER BY at LIMIT 1

-- name: take_statistics
DELETE FROM {schema}.statistics WHERE span = $1 AND at = $2 RETURNING {StatisticsRow}

-- name: prune_statistics
DELETE FROM {schema}.statistics WHERE (span, at, kind, queue, source) IN (
    SELECT span, at, kind, queue, source FROM {schema}.statistics
    WHERE span = $1 AND at < extract(epoch FROM now()) * 1000000 - $2::bigint
    ORDER BY at, kind, queue, source LIMIT $3
)

-- name: lock_statistics
SELECT name FROM {schema}.lock_row WHERE name = 'statistics' FOR UPDATE

-- name: vitals
-- A role sees the transactions of its own sessions; with `pg_read_all_stats`, all of them.
SELECT relname, n_dead_tup AS dead_rows, (
    SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8 FROM pg_catalog.pg_stat_activity
    WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
) AS seconds
FROM pg_catalog.pg_stat_user_tables WHERE schemaname = $1 AND relname IN ('task', 'history')
