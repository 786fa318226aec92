-- name: declare_limit
-- Two who say the same at once do it once.
INSERT INTO {schema}.task_limit (name, declared, value, every, burst) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE
SET declared = excluded.declared, value = excluded.value, every = excluded.every, burst = excluded.burst
WHERE task_limit.declared <> excluded.declared
