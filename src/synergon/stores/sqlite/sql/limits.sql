-- name: declared_limits
SELECT name, declared FROM synergon_limit WHERE name IN (SELECT value FROM json_each($1))

-- name: declare_limit
INSERT INTO synergon_limit (name, declared, value, per, starts, burst, by_units, batch_size, batch_wait)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, value = excluded.value, per = excluded.per,
    starts = excluded.starts, burst = excluded.burst, by_units = excluded.by_units,
    batch_size = excluded.batch_size, batch_wait = excluded.batch_wait

-- name: set_limit
UPDATE synergon_limit SET value = $2 WHERE name = $1 AND batch_size IS NULL

-- name: set_rate
-- If the old rate permits the next start only after $6, the start is permitted at $6.
UPDATE synergon_limit
SET per = $2, starts = $3, burst = $4, by_units = $5,
    next_at = iif(next_at > $6, $6, next_at)
WHERE name = $1 AND batch_size IS NULL

-- name: set_limit_starts
UPDATE synergon_limit SET next_at = $2 WHERE name = $1

-- name: limits
SELECT name, value, per, starts, burst, by_units, next_at, batch_size, batch_wait FROM synergon_limit ORDER BY name

-- name: held_permits
SELECT holds AS limits, iif(slot IS NULL, NULL, server) AS address, count(*) AS count FROM synergon_task
WHERE holds IS NOT NULL GROUP BY holds, address

-- name: key_queue_totals
SELECT kind, state, count(*) AS count FROM synergon_task
WHERE limit_key IS NOT NULL AND is_dependent = 0 AND state IN ('running', 'waiting') GROUP BY kind, state
