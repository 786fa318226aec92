-- name: next_kind
-- The first kind from here on that has ready tasks.
SELECT min(kind) FROM synergon_task WHERE state = 'ready' AND kind >= ?

-- name: lanes_of_kind
-- The queues that have ready tasks of a kind, and what those demand, by jumping from one to the next in the index.
WITH RECURSIVE line (queue) AS (
    SELECT min(queue) FROM synergon_task WHERE state = 'ready' AND kind = ?1
    UNION ALL
    SELECT (SELECT min(queue) FROM synergon_task WHERE state = 'ready' AND kind = ?1 AND queue > line.queue)
    FROM line WHERE line.queue IS NOT NULL
),
lane (queue, demand) AS (
    SELECT queue, (SELECT min(demand) FROM synergon_task WHERE state = 'ready' AND kind = ?1 AND queue = line.queue)
    FROM line WHERE queue IS NOT NULL
    UNION ALL
    SELECT queue, (
        SELECT min(demand) FROM synergon_task
        WHERE state = 'ready' AND kind = ?1 AND queue = lane.queue AND demand > lane.demand
    )
    FROM lane WHERE lane.demand IS NOT NULL
)
SELECT queue, demand FROM lane WHERE demand IS NOT NULL

-- name: ready
SELECT id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
    limit_key, group_id, priority, target, server, demand, spared_until
FROM synergon_task
WHERE state = 'ready' AND kind = ? AND queue = ? AND demand = ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY priority DESC, id
LIMIT ?

-- name: wanted_servers
-- The servers that commands of the kind ?1 are for, NULL if any will do; one step of the index for each.
WITH RECURSIVE wanted (target) AS (
    SELECT min(target) FROM synergon_task
    WHERE is_command = 1 AND state = 'ready' AND kind = ?1 AND target IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(target) FROM synergon_task
        WHERE is_command = 1 AND state = 'ready' AND kind = ?1 AND target > wanted.target
    )
    FROM wanted WHERE target IS NOT NULL
)
SELECT NULL WHERE EXISTS (
    SELECT 1 FROM synergon_task WHERE is_command = 1 AND state = 'ready' AND kind = ?1 AND target IS NULL
)
UNION ALL
SELECT target FROM wanted WHERE target IS NOT NULL

-- name: ready_commands
SELECT id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
    limit_key, group_id, priority, target, server, demand, spared_until
FROM synergon_task
WHERE is_command = 1 AND state = 'ready' AND kind = ? AND target IS ? AND (expires_at IS NULL OR expires_at > ?)
ORDER BY id
LIMIT ?

-- name: ready_among
-- Those of these tasks that are ready.
SELECT id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
    limit_key, group_id, priority, target, server, demand, spared_until
FROM synergon_task
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'ready' AND (expires_at IS NULL OR expires_at > ?)

-- name: claim
UPDATE synergon_task
SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = ?, started_at = ?, overdue = 0,
    kept_by = NULL, kept_until = NULL
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'ready'

-- name: keeping
SELECT run_at, kept_by, kept_until FROM synergon_task WHERE id = ?

-- name: keep
UPDATE synergon_task SET kept_by = ?, kept_until = ? WHERE id = ? AND state = 'ready'

-- name: let_go
UPDATE synergon_task SET kept_by = NULL, kept_until = NULL WHERE id = ? AND kept_by = ?

-- name: place
SELECT kind, state, priority, limit_key, after_group FROM synergon_task WHERE id = ? AND state IN ('ready', 'waiting')

-- name: ahead_in_lane
-- How many ready tasks of a lane go before this place; each half is counted up to the limit only.
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE state = 'ready' AND kind = ?1 AND queue = ?2 AND demand = ?3 AND priority > ?4 LIMIT ?6
        )
    ) + (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE state = 'ready' AND kind = ?1 AND queue = ?2 AND demand = ?3 AND priority = ?4 AND id < ?5 LIMIT ?6
        )
    )

-- name: ahead_in_line
-- The same for those of a line that are in the state ?2.
SELECT
    (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE kind = ?1 AND state = ?2 AND limit_key = ?3 AND after_group IS NULL AND priority > ?4 LIMIT ?6
        )
    ) + (
        SELECT count(*) FROM (
            SELECT 1 FROM synergon_task
            WHERE kind = ?1 AND state = ?2 AND limit_key = ?3 AND after_group IS NULL AND priority = ?4 AND id < ?5
            LIMIT ?6
        )
    )

-- name: ahead_of_waiting
-- The same for all of a kind that wait, be it in lines or for groups.
SELECT count(*) FROM (
    SELECT 1 FROM synergon_task
    WHERE kind = ?1 AND state = 'waiting' AND limit_key IS NOT NULL AND after_group IS NULL
        AND (priority > ?2 OR (priority = ?2 AND id < ?3))
    UNION ALL
    SELECT 1 FROM synergon_task
    WHERE kind = ?1 AND after_group IS NOT NULL AND (priority > ?2 OR (priority = ?2 AND id < ?3))
    LIMIT ?4
)
