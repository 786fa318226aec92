-- name: declared_limit
SELECT declared FROM synergon_limit WHERE name = ?

-- name: declare_limit
INSERT INTO synergon_limit (name, declared, value, every, burst) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, value = excluded.value, every = excluded.every, burst = excluded.burst

-- name: set_limit
UPDATE synergon_limit SET value = ? WHERE name = ?

-- name: limits
SELECT name, value, every, burst FROM synergon_limit ORDER BY name

-- name: held_permits
SELECT holds AS limits, iif(slot IS NULL, NULL, server) AS address, count(*) AS count FROM synergon_task
WHERE holds IS NOT NULL GROUP BY holds, address

-- name: key_queue_totals
SELECT kind, state, count(*) AS count FROM synergon_task
WHERE limit_key IS NOT NULL AND after_group IS NULL AND state IN ('running', 'waiting') GROUP BY kind, state
