-- name: add_action
INSERT INTO synergon_order (id, verb, subject, value, who, node_id, requested_at, done_at, outcome, node_name)
VALUES (:next_id, $1, $2, CAST($3 AS BLOB), $4, $5, :now, iif($6 IS NULL, NULL, :now), $6, $7)
RETURNING id, verb, subject, value, who, node_name, requested_at, done_at, outcome

-- name: may_add_action
SELECT true

-- name: set_outcome
UPDATE synergon_order SET done_at = :now, outcome = $2 WHERE id = $1 AND done_at IS NULL

-- name: latest_actions
SELECT id, verb, subject, value, who, node_name, requested_at, done_at, outcome FROM synergon_order ORDER BY id DESC LIMIT $1

-- name: open_actions
SELECT id, verb, subject, value, who, node_name, requested_at, done_at, outcome FROM synergon_order
WHERE node_id = $1 AND done_at IS NULL ORDER BY id LIMIT $2

-- name: prune_audit
-- Ids grow with time, so the oldest actions are found without reading the others.
DELETE FROM synergon_order WHERE id IN (
    SELECT id FROM (SELECT id, requested_at FROM synergon_order ORDER BY id LIMIT $2) WHERE requested_at < :now - $1
)
