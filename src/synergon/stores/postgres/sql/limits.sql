-- name: declared_limits
SELECT name, declared FROM {schema}.task_limit WHERE name = ANY ($1)

-- name: declare_limit
-- If two transactions store one declaration at once, only the first changes the row.
INSERT INTO {schema}.task_limit (name, declared, value, every, burst) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, value = excluded.value, every = excluded.every, burst = excluded.burst
WHERE task_limit.declared <> excluded.declared

-- name: set_limit
UPDATE {schema}.task_limit SET value = $2 WHERE name = $1

-- name: limits
SELECT name, value, every, burst FROM {schema}.task_limit ORDER BY name

-- name: prefixes
-- The names of limits that may cover servers.
SELECT name FROM {schema}.task_limit WHERE value IS NOT NULL AND name NOT LIKE 'key:%' AND name NOT LIKE 'kind:%'

-- name: held_permits
SELECT holds AS limits, CASE WHEN slot IS NOT NULL THEN server END AS address, count(*) AS count FROM {schema}.task
WHERE holds IS NOT NULL GROUP BY 1, 2

-- name: key_queue_totals
SELECT kind, state, count(*) AS count FROM {schema}.task
WHERE limit_key IS NOT NULL AND after_group IS NULL AND state IN ('running', 'waiting') GROUP BY kind, state
