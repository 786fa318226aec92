-- name: lock_limits
-- Whoever waits here sees what the one before has done: what follows is counted by later statements. The doors are
-- closed in the order of the names, too, and from the last one on: others take the first that is open, so whoever closes
-- them waits for each of those who are inside, and for nobody who comes later.
WITH locked AS MATERIALIZED (
    SELECT name, value, every, burst FROM {schema}.task_limit WHERE name = ANY ($1) ORDER BY name FOR UPDATE
),
closed AS MATERIALIZED (
    SELECT locked.* FROM locked CROSS JOIN LATERAL (
        SELECT count(*) FROM (
            SELECT turn.name FROM {schema}.turn
            WHERE locked.name LIKE 'key:%' AND turn.name = ANY (ARRAY(
                SELECT locked.name || '/' || number FROM generate_series(0, 7) AS number
            ))
            ORDER BY turn.name DESC FOR UPDATE
        ) AS door
    ) AS doors
)
SELECT name, value, every, burst FROM closed

-- name: lock_lines
-- The limits of all lines.
WITH locked AS MATERIALIZED (
    SELECT name, value, every, burst FROM {schema}.task_limit WHERE name >= 'key:' AND name < 'key;'
    ORDER BY name FOR UPDATE
),
{lock_limits.closed}
SELECT name, value, every, burst FROM closed

-- name: enter
-- The first open door of each.
SELECT found.name FROM (SELECT name FROM unnest($1::text[]) AS name ORDER BY name) AS wanted CROSS JOIN LATERAL (
    SELECT turn.name FROM {schema}.turn
    WHERE turn.name = ANY (ARRAY(SELECT wanted.name || '/' || number FROM generate_series(0, 7) AS number))
    ORDER BY turn.name LIMIT 1 FOR UPDATE SKIP LOCKED
) AS found

-- name: queue_up
-- The same where none is open.
SELECT found.name FROM (SELECT name FROM unnest($1::text[]) AS name ORDER BY name) AS wanted CROSS JOIN LATERAL (
    SELECT turn.name FROM {schema}.turn WHERE turn.name = wanted.name || '/' || $2::integer % 8 FOR UPDATE
) AS found

-- name: succeed_in_lines
-- Plain successes (`succeed`), and for each that stood in a line the first that waits there has a place. Others may do
-- the same to the same lines, hence nothing is counted against them: one comes for one that goes, and who is locked
-- follows somebody else. Only lines are touched where that is all there is to do: the limit is a number, and was not
-- lowered; nobody is left over who waits, unless as many have a place as may. What stands in other lines is not ended.
-- Those who follow are ready. Or, if a node ($5) asks for tasks of their kind ($6), it takes the first $8 of all that are
-- ready then, as `claim` does: in the queues $7, and nothing if one of them demands something of its own. It does so when
-- the others are gone, for those who watch the rows.
WITH own AS MATERIALIZED (
    SELECT id, kind, limit_key FROM {schema}.task
    WHERE id = ANY ($1) AND state || '' = 'running'
        AND claim_no = ($2::bigint[])[CASE WHEN cardinality($2) = 1 THEN 1 ELSE width_bucket(id, $1::bigint[]) END]
        AND NOT cancel_requested AND group_id IS NULL
        AND (slot IS NULL OR NOT EXISTS (
            SELECT 1 FROM {schema}.server WHERE server.provider = task.provider AND server.address = task.server
                AND (failures > 0 OR rests > 0 OR resting_until IS NOT NULL)
        ))
    ORDER BY id FOR UPDATE
),
paused AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL
),
line AS MATERIALIZED (
    SELECT kind, limit_key, array_agg(id) AS ids, count(*) AS ended,
        'ready' AS ready, 'running' AS running, 'waiting' AS waiting
    FROM own WHERE limit_key IS NOT NULL GROUP BY kind, limit_key
),
terms AS MATERIALIZED (
    SELECT named.kind, value FROM (SELECT DISTINCT kind FROM line) AS named
    JOIN {schema}.task_limit ON name = 'key:' || named.kind
    WHERE value IS NOT NULL AND every IS NULL
),
standing AS MATERIALIZED (
    SELECT line.*, value, (
        SELECT count(*) FROM {schema}.task
        WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL
            AND state >= line.ready AND state <= line.running
    ) AS placed, following.*
    FROM terms JOIN line ON line.kind = terms.kind CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(id), '{}') AS following, array_agg(priority) AS priorities, bool_and(is_fit) AS are_fit
        FROM (
            SELECT id, priority, requirements = '' AND (expires_at IS NULL OR expires_at > statement_timestamp())
                AND ($7::text[] IS NULL OR queue = ANY ($7)) AS is_fit
            FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.waiting
                AND queue NOT IN (SELECT name FROM paused)
            ORDER BY priority DESC, id LIMIT line.ended
            FOR UPDATE SKIP LOCKED
        ) AS first
    ) AS following
),
closing_up AS MATERIALIZED (
    SELECT ids, following, priorities, are_fit FROM standing
    WHERE placed <= value AND ((placed = value AND cardinality(following) = ended) OR NOT EXISTS (
        SELECT 1 FROM {schema}.task
        WHERE kind = standing.kind AND limit_key = standing.limit_key AND after_group IS NULL
            AND state = standing.waiting AND queue NOT IN (SELECT name FROM paused) AND id <> ALL (following)
    ))
),
open AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NULL AND ($7 IS NULL OR name = ANY ($7)) AND $5::text IS NOT NULL
),
asking AS MATERIALIZED (
    SELECT true AS is_open WHERE NOT EXISTS (SELECT 1 FROM closing_up WHERE NOT are_fit)
        AND NOT EXISTS (
            SELECT 1 FROM open CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task
                WHERE state = 'ready' AND kind = $6::text AND queue = open.name AND requirements > '' LIMIT 1
            ) AS demanding
        )
        AND EXISTS (
            SELECT 1 FROM {schema}.node WHERE id = $5 AND leased_until > statement_timestamp() AND cordoned_at IS NULL
            FOR KEY SHARE
        )
),
ready AS MATERIALIZED (
    SELECT found.id, found.priority FROM asking CROSS JOIN open CROSS JOIN LATERAL (
        SELECT id, priority FROM {schema}.task
        WHERE state = 'ready' AND kind = $6 AND queue = open.name AND requirements = ''
            AND (expires_at IS NULL OR expires_at > statement_timestamp())
        ORDER BY priority DESC, id
        LIMIT $8
        FOR UPDATE SKIP LOCKED
    ) AS found
),
follower AS MATERIALIZED (
    SELECT follower.id, follower.priority FROM closing_up CROSS JOIN LATERAL unnest(following, priorities)
        AS follower (id, priority)
),
ended AS (
    DELETE FROM {schema}.task WHERE id = ANY (ARRAY(
        SELECT unnest(ids) FROM closing_up UNION ALL SELECT id FROM own WHERE limit_key IS NULL
    ))
    RETURNING *
),
picked AS MATERIALIZED (
    SELECT candidate.id FROM asking CROSS JOIN (SELECT count(*) FROM ended) AS all_ended
    CROSS JOIN (SELECT * FROM ready UNION ALL SELECT * FROM follower) AS candidate
    ORDER BY priority DESC, id LIMIT $8
),
{succeed.moved},
{succeed.counted},
taken AS (
    UPDATE {schema}.task
    SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $5,
        started_at = greatest(statement_timestamp(), enqueued_at), overdue = false, reserved_by = NULL, reserved_until = NULL
    WHERE state || '' IN ('ready', 'waiting') AND id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, requirements,
        greatest(ceil(extract(epoch FROM protected_until - statement_timestamp()) * 1000000), 0)::bigint AS protected_for,
        priority
),
promoted AS (
    UPDATE {schema}.task SET state = 'ready'
    WHERE state || '' = 'waiting' AND id = ANY (ARRAY(SELECT id FROM follower EXCEPT SELECT id FROM picked))
    RETURNING id
)
SELECT CASE WHEN row_number() OVER () = 1 THEN ARRAY(SELECT id FROM moved) END AS ended,
    (SELECT count(*) FROM promoted) AS let_go, taken.*
FROM (SELECT 1) AS always LEFT JOIN taken ON true

-- name: find_no_limit
-- Beside others who find none, and not beside somebody who makes one.
SELECT name FROM {schema}.turn WHERE name = 'lines' FOR KEY SHARE

-- name: make_limit
SELECT name FROM {schema}.turn WHERE name = 'lines' FOR UPDATE

-- name: survey
-- How lines stand: how many run, how many are ready, how many of those in paused queues, the last of those, and the
-- first that wait. Here and below the states stand in a table, because the planner likes to walk through the index of all
-- that are ready or running when it believes that there are few.
WITH paused AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL
),
line AS MATERIALIZED (
    SELECT kind, limit_key, 'running' AS running, 'ready' AS ready, 'waiting' AS waiting
    FROM unnest($1::text[], $2::text[]) AS given (kind, limit_key)
)
SELECT
    line.kind, line.limit_key, running.count AS running, ready.count AS ready, ready.paused AS paused,
    last_ready.priority AS last_priority, last_ready.id AS last_id, waiting.priorities, waiting.ids
FROM line
CROSS JOIN LATERAL (
    SELECT count(*) FROM {schema}.task
    WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.running
) AS running
CROSS JOIN LATERAL (
    SELECT count(*), count(*) FILTER (WHERE queue IN (SELECT name FROM paused)) AS paused FROM {schema}.task
    WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.ready
) AS ready
LEFT JOIN LATERAL (
    SELECT priority, id FROM {schema}.task
    WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.ready
    ORDER BY priority, id DESC LIMIT 1
) AS last_ready ON true
CROSS JOIN LATERAL (
    SELECT array_agg(first.priority) AS priorities, array_agg(first.id) AS ids FROM (
        SELECT priority, id FROM {schema}.task
        WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.waiting
            AND queue NOT IN (SELECT name FROM paused)
        ORDER BY priority DESC, id LIMIT $3
    ) AS first
) AS waiting

-- name: first_waiting
SELECT id FROM {schema}.task
WHERE kind = $1 AND limit_key = $2 AND after_group IS NULL AND state = 'waiting'
    AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
ORDER BY priority DESC, id LIMIT $3

-- name: misplaced
-- The ready tasks of a line that are not among its first $3.
WITH line AS MATERIALIZED (
    SELECT $1::text AS kind, $2::text AS limit_key, 'ready' AS ready, 'waiting' AS waiting
)
SELECT task.id FROM line JOIN {schema}.task
    ON task.kind = line.kind AND task.limit_key = line.limit_key AND task.after_group IS NULL AND task.state = line.ready
WHERE task.id <> ALL (ARRAY(
    SELECT id FROM (
        SELECT id, priority FROM line CROSS JOIN LATERAL (
            SELECT id, priority FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.ready
                AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
            ORDER BY priority DESC, id LIMIT $3
        ) AS ready
        UNION ALL
        SELECT id, priority FROM line CROSS JOIN LATERAL (
            SELECT id, priority FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.waiting
                AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
            ORDER BY priority DESC, id LIMIT $3
        ) AS waiting
    ) AS member
    ORDER BY priority DESC, id LIMIT $3
))

-- name: demote
-- A claimer is quicker, or is not: one whose row is locked keeps its place.
UPDATE {schema}.task SET state = 'waiting', reserved_by = NULL, reserved_until = NULL
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'ready' ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id, kind

-- name: promote
UPDATE {schema}.task SET state = 'ready'
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = ANY ($1) AND state || '' = 'waiting' ORDER BY id FOR UPDATE
))
RETURNING id, kind

-- name: promote_lines
-- Lines that have no end. OFFSET 0 keeps the look by line, one after the other.
UPDATE {schema}.task SET state = 'ready'
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
        SELECT found.id FROM unnest($1::text[], $2::text[]) AS line (kind, limit_key) CROSS JOIN LATERAL (
            SELECT id FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = 'waiting'
            OFFSET 0
        ) AS found
    ))
    ORDER BY id FOR UPDATE
))
RETURNING id, kind

-- name: lines_of_kind
-- The lines of a kind that have ready or waiting tasks, by jumping from one to the next in the index.
WITH RECURSIVE line (limit_key) AS (
    (
        SELECT limit_key FROM {schema}.task
        WHERE limit_key IS NOT NULL AND after_group IS NULL AND kind = $1 ORDER BY limit_key LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT task.limit_key FROM {schema}.task
        WHERE task.limit_key > line.limit_key AND task.after_group IS NULL AND task.kind = $1
        ORDER BY task.limit_key LIMIT 1
    )
    FROM line WHERE line.limit_key IS NOT NULL
)
SELECT limit_key FROM line
WHERE limit_key IS NOT NULL AND EXISTS (
    SELECT 1 FROM {schema}.task
    WHERE task.kind = $1 AND task.limit_key = line.limit_key AND task.after_group IS NULL
        AND task.state IN ('ready', 'waiting')
)

-- name: lines_of_queue
SELECT DISTINCT kind, limit_key FROM {schema}.task
WHERE limit_key IS NOT NULL AND after_group IS NULL AND state IN ('ready', 'waiting') AND queue = $1

-- name: rates
-- What is remembered of these lines, whether somebody's turn has come, and when the next one comes; all by the clock of
-- now. The index of turns is the only one that says `state || ''`, here and below: with another the planner would walk
-- through all that is due, of any line, when its statistics are of another time.
SELECT
    line.kind, line.limit_key, rate.next_at, awaited.run_at AS awaited,
    coalesce(first.run_at <= statement_timestamp(), false) AS is_due,
    floor(extract(epoch FROM statement_timestamp()) * 1000000)::bigint AS now
FROM unnest($1::text[], $2::text[]) AS line (kind, limit_key)
LEFT JOIN {schema}.rate ON rate.kind = line.kind AND rate.limit_key = line.limit_key
LEFT JOIN LATERAL (
    SELECT run_at FROM {schema}.task
    WHERE kind = line.kind AND limit_key = line.limit_key AND state || '' = 'scheduled'
    ORDER BY run_at LIMIT 1
) AS first ON true
LEFT JOIN LATERAL (
    SELECT run_at FROM {schema}.task
    WHERE kind = line.kind AND limit_key = line.limit_key AND state || '' = 'scheduled'
        AND run_at > statement_timestamp()
    ORDER BY run_at LIMIT 1
) AS awaited ON true

-- name: next_start
SELECT next_at FROM {schema}.rate WHERE kind = $1 AND limit_key = $2

-- name: line_up
-- Those of a line whose turn has come. One whose row is locked is moved by its holder.
UPDATE {schema}.task SET state = 'waiting'
WHERE state || '' = 'scheduled' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE kind = $1 AND limit_key = $2 AND state || '' = 'scheduled' AND run_at <= $3
    ORDER BY id FOR UPDATE SKIP LOCKED
))
RETURNING id, kind

-- name: charge_rates
INSERT INTO {schema}.rate (kind, limit_key, next_at)
SELECT kind, limit_key, next_at FROM unnest($1::text[], $2::text[], $3::bigint[]) AS new (kind, limit_key, next_at)
ORDER BY kind, limit_key
ON CONFLICT (kind, limit_key) DO UPDATE SET next_at = excluded.next_at

-- name: give_turns
UPDATE {schema}.task SET state = 'scheduled', run_at = turn.run_at
FROM unnest($1::bigint[], $2::timestamptz[]) AS turn (id, run_at)
WHERE task.id = turn.id AND task.id = ANY ($1) AND state || '' = 'waiting'
RETURNING task.id, kind

-- name: nudge
-- The first that waits in a line comes back at once, and the line is put in order then.
UPDATE {schema}.task SET state = 'scheduled', run_at = statement_timestamp()
WHERE state || '' = 'waiting' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE kind = $1 AND limit_key = $2 AND after_group IS NULL AND state = 'waiting' AND id <> $3
        AND queue NOT IN (SELECT name FROM {schema}.queue WHERE paused_at IS NOT NULL)
    ORDER BY priority DESC, id LIMIT 1
))

-- name: prune_rates
-- Asked twice: somebody may have started a task between the look and the removal.
DELETE FROM {schema}.rate WHERE next_at < extract(epoch FROM now()) * 1000000 AND (kind, limit_key) IN (
    SELECT kind, limit_key FROM {schema}.rate
    WHERE next_at < extract(epoch FROM now()) * 1000000 ORDER BY next_at LIMIT $1 FOR UPDATE SKIP LOCKED
)
