-- name: declared_limits
SELECT name, declared FROM {schema}.task_limit WHERE name = ANY ($1)

-- name: declare_limit
-- If two transactions store equal declarations at once, only the first changes the row.
INSERT INTO {schema}.task_limit (name, declared, value, per, starts, burst, by_units, batch_size, batch_wait)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, value = excluded.value, per = excluded.per,
    starts = excluded.starts, burst = excluded.burst, by_units = excluded.by_units,
    batch_size = excluded.batch_size, batch_wait = excluded.batch_wait
WHERE task_limit.declared <> excluded.declared

-- name: set_limit
UPDATE {schema}.task_limit SET value = $2 WHERE name = $1 AND batch_size IS NULL

-- name: set_rate
-- If the old rate permits the next start only after $6, the start is permitted at $6.
UPDATE {schema}.task_limit
SET per = $2, starts = $3, burst = $4, by_units = $5,
    next_at = CASE WHEN next_at > $6::bigint THEN $6 ELSE next_at END
WHERE name = $1 AND batch_size IS NULL

-- name: set_limit_starts
UPDATE {schema}.task_limit SET next_at = new.next_at
FROM unnest($1::text[], $2::bigint[]) AS new (name, next_at) WHERE task_limit.name = new.name

-- name: limits
SELECT name, value, per, starts, burst, by_units, next_at, batch_size, batch_wait FROM {schema}.task_limit ORDER BY name

-- name: prefixes
-- The names of limits that may cover servers.
SELECT name FROM {schema}.task_limit
WHERE (value IS NOT NULL OR per IS NOT NULL) AND name NOT LIKE 'key:%' AND name NOT LIKE 'kind:%'

-- name: held_permits
SELECT holds AS limits, CASE WHEN slot IS NOT NULL THEN server END AS address, count(*) AS count FROM {schema}.task
WHERE holds IS NOT NULL GROUP BY 1, 2

-- name: key_queue_totals
SELECT kind, state, count(*) AS count FROM {schema}.task
WHERE limit_key IS NOT NULL AND NOT is_dependent AND state IN ('running', 'waiting') GROUP BY kind, state
