-- name: add_action
INSERT INTO {schema}.audit_log (verb, subject, value, who, node_id, requested_at, done_at, outcome, node_name)
VALUES ($1, $2, $3, $4, $5, now(), CASE WHEN $6::text IS NOT NULL THEN now() END, $6, $7)
RETURNING id, verb, subject, value, who, node_name, requested_at, done_at, outcome

-- name: may_add_action
SELECT has_table_privilege('{schema}.audit_log', 'INSERT')

-- name: set_outcome
UPDATE {schema}.audit_log SET done_at = now(), outcome = $2 WHERE id = $1 AND done_at IS NULL

-- name: latest_actions
SELECT id, verb, subject, value, who, node_name, requested_at, done_at, outcome FROM {schema}.audit_log ORDER BY id DESC LIMIT $1

-- name: open_actions
SELECT id, verb, subject, value, who, node_name, requested_at, done_at, outcome FROM {schema}.audit_log
WHERE node_id = $1 AND done_at IS NULL ORDER BY id LIMIT $2

-- name: lock_lease
SELECT leased_until > now() FROM {schema}.node WHERE id = $1 FOR UPDATE

-- name: cordon
UPDATE {schema}.node SET cordoned_at = coalesce(cordoned_at, now()) WHERE id = $1

-- name: uncordon
UPDATE {schema}.node SET cordoned_at = NULL WHERE id = $1

-- name: prune_audit
-- Ids grow with time, so the oldest actions are found without reading the others.
DELETE FROM {schema}.audit_log WHERE id = ANY (ARRAY(
    SELECT id FROM (SELECT id, requested_at FROM {schema}.audit_log ORDER BY id LIMIT $2) AS oldest
    WHERE requested_at < now() - $1::bigint * interval '1 microsecond'
))
