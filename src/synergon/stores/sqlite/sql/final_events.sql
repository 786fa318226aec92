-- name: endings
-- Uses the index by state and age. The id needs no column there: it is the last column of every index.
SELECT {event} FROM synergon_history
WHERE state = ? AND finished_at > ?
ORDER BY finished_at, id
LIMIT ?

-- name: endings_at
-- The remaining events of a moment. A transaction may have ended many tasks at one moment.
SELECT {event} FROM synergon_history
WHERE state = ? AND finished_at = ? AND id > ?
ORDER BY id
LIMIT ?

-- name: last_moment
SELECT clock FROM synergon_sequence

-- name: note_pruned
INSERT INTO synergon_pruned (state, kind, moment) VALUES (?, ?, ?)
ON CONFLICT (state, kind) DO UPDATE SET moment = max(moment, excluded.moment)

-- name: pruned
-- Ignores moments in the future: with such a moment, no reader would get any event.
SELECT coalesce(max(moment), 0) FROM synergon_pruned
WHERE moment <= (SELECT clock FROM synergon_sequence) AND state IN (SELECT value FROM json_each(:states))
    AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
