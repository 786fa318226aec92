-- name: limit
SELECT declared FROM synergon_limit WHERE name = ?

-- name: declare_limit
INSERT INTO synergon_limit (name, declared, value, every, burst) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, value = excluded.value, every = excluded.every, burst = excluded.burst

-- name: set_limit
UPDATE synergon_limit SET value = ? WHERE name = ?

-- name: limits
SELECT name, value, every, burst FROM synergon_limit ORDER BY name

-- name: limit_values
-- What running tasks are counted against. Lines have limits of their own.
SELECT name, value FROM synergon_limit WHERE value IS NOT NULL AND substr(name, 1, 4) <> 'key:'

-- name: held_permits
-- Without a slot the server is only the last one.
SELECT holds, provider, iif(slot IS NULL, NULL, server), slot FROM synergon_task WHERE holds IS NOT NULL

-- name: used_limits
SELECT holds, iif(slot IS NULL, NULL, server) AS address, count(*) FROM synergon_task
WHERE holds IS NOT NULL GROUP BY holds, address

-- name: used_key_queues
SELECT kind, state, count(*) FROM synergon_task
WHERE limit_key IS NOT NULL AND after_group IS NULL AND state IN ('running', 'waiting') GROUP BY kind, state

-- name: take_permits
-- The last parameter is a list of [id, holds, provider, server, slot].
UPDATE synergon_task
SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = ?, started_at = ?, overdue = 0,
    reserved_by = NULL, reserved_until = NULL, holds = permit.holds, provider = coalesce(permit.provider, synergon_task.provider),
    server = coalesce(permit.server, synergon_task.server), slot = permit.slot
FROM (
    SELECT
        json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS holds,
        json_extract(value, '$[2]') AS provider, json_extract(value, '$[3]') AS server,
        json_extract(value, '$[4]') AS slot
    FROM json_each(?)
) AS permit
WHERE synergon_task.id = permit.id AND synergon_task.state = 'ready'
