-- name: add_action
INSERT INTO synergon_order (id, verb, subject, value, who, node_name, node_id, requested_at, done_at, outcome)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: set_outcome
UPDATE synergon_order SET done_at = ?, outcome = ? WHERE id = ? AND done_at IS NULL

-- name: latest_actions
SELECT id, verb, subject, value, who, node_name, requested_at, done_at, outcome FROM synergon_order ORDER BY id DESC LIMIT ?

-- name: open_actions
SELECT id, verb, subject, value, who, node_name, requested_at, done_at, outcome FROM synergon_order
WHERE node_id = ? AND done_at IS NULL ORDER BY id LIMIT ?

-- name: prune_audit
-- Ids grow with time, so the oldest actions are found without reading the others.
DELETE FROM synergon_order WHERE id IN (
    SELECT id FROM (SELECT id, requested_at FROM synergon_order ORDER BY id LIMIT ?) WHERE requested_at < ?
)
