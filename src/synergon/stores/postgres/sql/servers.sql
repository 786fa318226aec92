-- name: declared_providers
SELECT name, declared FROM {schema}.provider WHERE name = ANY ($1)

-- name: declare_provider
INSERT INTO {schema}.provider (
    name, declared, backoff_after, backoff_first, backoff_cap, failure_most, failure_window, probe_timeout
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, backoff_after = excluded.backoff_after, backoff_first = excluded.backoff_first,
    backoff_cap = excluded.backoff_cap, failure_most = excluded.failure_most, failure_window = excluded.failure_window,
    probe_timeout = excluded.probe_timeout
WHERE provider.declared <> excluded.declared

-- name: lock_provider
SELECT name FROM {schema}.provider WHERE name = $1 FOR UPDATE

-- name: add_servers
-- A server that remains in the pool retains its health.
INSERT INTO {schema}.server (provider, address, capacity)
SELECT provider, address, capacity
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS new (provider, address, capacity) ORDER BY provider, address
ON CONFLICT (provider, address) DO UPDATE SET capacity = excluded.capacity

-- name: drop_servers
DELETE FROM {schema}.server WHERE provider = $1 AND address <> ALL ($2)

-- name: commands_without_server
SELECT id, target FROM {schema}.task
WHERE is_command AND provider = $1 AND target IS NOT NULL AND target <> ALL ($2) AND state <> 'running'

-- name: addresses
SELECT address FROM {schema}.server WHERE provider = ANY ($1)

-- name: lock_pools
SELECT server.provider, address, capacity,
    CASE WHEN failed_at > statement_timestamp() - interval '60 seconds' THEN recent ELSE 0 END AS recent,
    backs_off_until IS NOT NULL AS is_out,
    backs_off_until IS NOT NULL AND backs_off_until > statement_timestamp() AS backs_off,
    EXISTS (
        SELECT 1 FROM {schema}.provider WHERE name = server.provider AND probe_timeout IS NOT NULL
    ) AS is_probed,
    ARRAY(
        SELECT name FROM {schema}.task_limit
        WHERE (value IS NOT NULL OR per IS NOT NULL) AND name NOT LIKE 'key:%' AND name NOT LIKE 'kind:%'
    ) AS prefixes
FROM {schema}.server WHERE server.provider = ANY ($1) ORDER BY server.provider, address FOR UPDATE

-- name: servers
SELECT provider, address, capacity, failures, recent, backs_off_until AS backs_off_until, failed_at AS failed_at,
    EXISTS (
        SELECT 1 FROM {schema}.provider WHERE name = server.provider AND probe_timeout IS NOT NULL
    ) AS is_probed
FROM {schema}.server

-- name: used_servers
SELECT provider, server AS address, count(*) AS count FROM {schema}.task
WHERE slot IS NOT NULL GROUP BY provider, server

-- name: unhealthy_servers
-- The given servers that are not healthy: a success would change their rows.
SELECT server.provider, server.address
FROM unnest($1::text[], $2::text[]) AS asked (provider, address) JOIN {schema}.server USING (provider, address)
WHERE failures > 0 OR recent > 0 OR backoffs > 0 OR backs_off_until IS NOT NULL

-- part: health
server.provider, address, failures, recent, backoffs AS backoffs, backs_off_until AS backs_off_until,
    failed_at AS failed_at, statement_timestamp() AS now, backoff_after AS backoff_after, backoff_first AS backoff_first,
    backoff_cap AS backoff_cap, failure_most AS failure_most, failure_window AS failure_window, probe_timeout AS probe_timeout

-- name: lock_health
SELECT {health}
FROM unnest($1::text[], $2::text[]) AS asked (provider, address)
JOIN {schema}.server USING (provider, address)
JOIN {schema}.provider ON provider.name = server.provider
ORDER BY server.provider, address FOR UPDATE OF server

-- name: lock_suspended
SELECT {health}
FROM {schema}.server JOIN {schema}.provider ON provider.name = server.provider
WHERE server.provider = ANY ($1) AND backs_off_until IS NOT NULL
ORDER BY server.provider, address FOR UPDATE OF server

-- name: set_health
UPDATE {schema}.server SET failures = $3, recent = $4, backoffs = $5, backs_off_until = $6, failed_at = $7
WHERE provider = $1 AND address = $2
