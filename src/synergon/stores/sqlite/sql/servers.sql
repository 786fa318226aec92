-- name: declared_providers
SELECT name, declared FROM synergon_provider WHERE name IN (SELECT value FROM json_each($1))

-- name: lock_provider
SELECT name FROM synergon_provider WHERE name = $1

-- name: declare_provider
INSERT INTO synergon_provider (
    name, declared, backoff_after, backoff_first, backoff_cap, failure_most, failure_window, probe_timeout
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, backoff_after = excluded.backoff_after, backoff_first = excluded.backoff_first,
    backoff_cap = excluded.backoff_cap, failure_most = excluded.failure_most, failure_window = excluded.failure_window,
    probe_timeout = excluded.probe_timeout

-- name: add_servers
-- A server that remains in the pool retains its health.
INSERT INTO synergon_server (provider, address, capacity) VALUES ($1, $2, $3)
ON CONFLICT (provider, address) DO UPDATE SET capacity = excluded.capacity

-- name: drop_servers
DELETE FROM synergon_server WHERE provider = $1 AND address NOT IN (SELECT value FROM json_each($2))

-- name: commands_without_server
SELECT id, target FROM synergon_task
WHERE is_command = 1 AND provider = $1 AND target IS NOT NULL AND target NOT IN (SELECT value FROM json_each($2))
    AND state <> 'running'

-- name: servers_of
SELECT server.provider, address, capacity, failures, recent, backs_off_until AS backs_off_until, failed_at AS failed_at,
    probe_timeout IS NOT NULL AS is_probed
FROM json_each(?) AS wanted CROSS JOIN synergon_provider AS provider CROSS JOIN synergon_server AS server
WHERE provider.name = wanted.value AND server.provider = provider.name
ORDER BY server.provider, address

-- name: servers
SELECT provider, address, capacity, failures, recent, backs_off_until AS backs_off_until, failed_at AS failed_at,
    probe_timeout IS NOT NULL AS is_probed
FROM synergon_server AS server LEFT JOIN synergon_provider AS provider ON provider.name = server.provider

-- name: used_servers
SELECT provider, server AS address, count(*) AS count FROM synergon_task WHERE slot IS NOT NULL GROUP BY provider, server

-- part: health
server.provider, address, failures, recent, backoffs AS backoffs, backs_off_until AS backs_off_until,
    failed_at AS failed_at, :now AS now,
    backoff_after AS backoff_after, backoff_first AS backoff_first, backoff_cap AS backoff_cap,
    failure_most AS failure_most, failure_window AS failure_window, probe_timeout AS probe_timeout

-- name: lock_health
-- $1 is a list of pairs [provider, address].
SELECT {health}
FROM json_each($1) AS named CROSS JOIN synergon_server AS server CROSS JOIN synergon_provider AS provider
WHERE server.provider = json_extract(named.value, '$[0]') AND address = json_extract(named.value, '$[1]')
    AND provider.name = server.provider

-- name: lock_suspended
SELECT {health}
FROM synergon_server AS server CROSS JOIN synergon_provider AS provider
WHERE backs_off_until IS NOT NULL AND server.provider IN (SELECT value FROM json_each($1))
    AND provider.name = server.provider

-- name: set_health
UPDATE synergon_server SET failures = $3, recent = $4, backoffs = $5, backs_off_until = $6, failed_at = $7
WHERE provider = $1 AND address = $2
