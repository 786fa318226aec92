-- name: lanes
-- Whether the node has a lease, whether it is cordoned, and what the ready tasks of these kinds demand, by jumping from
-- one demand to the next in the index. Commands come from every queue. Nothing is locked.
WITH RECURSIVE lane (kind, queue, demand) AS (
    SELECT room.kind, queue.name, (
        SELECT demand FROM {schema}.task
        WHERE state = 'ready' AND kind = room.kind AND queue = queue.name ORDER BY demand LIMIT 1
    )
    FROM unnest($2::text[], $3::boolean[]) AS room (kind, is_command) CROSS JOIN {schema}.queue
    WHERE room.is_command OR (queue.paused_at IS NULL AND ($4::text[] IS NULL OR queue.name = ANY ($4)))
    UNION ALL
    SELECT lane.kind, lane.queue, (
        SELECT task.demand FROM {schema}.task
        WHERE task.state = 'ready' AND task.kind = lane.kind AND task.queue = lane.queue AND task.demand > lane.demand
        ORDER BY task.demand LIMIT 1
    )
    FROM lane WHERE lane.demand IS NOT NULL
)
SELECT node.is_cordoned, found.kind, found.demand
FROM (SELECT 1) AS always
LEFT JOIN (
    SELECT cordoned_at IS NOT NULL AS is_cordoned FROM {schema}.node WHERE id = $1 AND leased_until > now()
) AS node ON true
LEFT JOIN (SELECT DISTINCT kind, demand FROM lane WHERE demand IS NOT NULL) AS found ON true

-- name: ready
-- The first ready tasks of some kinds and demands, in open queues; without locks. $6: how long a task has to be due
-- before room is kept for it; $7: by whom. If $9, what running tasks hold is told beside, without an id.
WITH lane AS MATERIALIZED (
    SELECT asked.kind, asked.demand, asked.count, queue.name AS queue
    FROM unnest($1::text[], $2::text[], $3::integer[]) AS asked (kind, demand, count)
    CROSS JOIN {schema}.queue
    WHERE queue.paused_at IS NULL AND ($4::text[] IS NULL OR queue.name = ANY ($4))
)
SELECT found.id, found.priority, lane.kind, lane.queue, lane.demand, found.target, found.server, found.attempts,
    coalesce(found.run_at + $6::bigint * interval '1 microsecond' <= now(), false)
        AND (
            found.kept_until IS NULL OR found.kept_until <= now() OR found.kept_by = $7
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = found.kept_by AND leased_until > now() AND cordoned_at IS NULL
            )
        ) AS may_be_kept, NULL AS holds, NULL AS provider, NULL::integer AS slot
FROM lane CROSS JOIN LATERAL (
    SELECT id, priority, target, server, attempts, run_at, kept_by, kept_until FROM {schema}.task
    WHERE state = 'ready' AND kind = lane.kind AND queue = lane.queue AND demand = lane.demand
        AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($5::bigint[])
    ORDER BY priority DESC, id
    LIMIT least(lane.count, $8)
) AS found
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, CASE WHEN slot IS NOT NULL THEN server END, NULL, NULL, holds, provider, slot
FROM {schema}.task WHERE holds IS NOT NULL AND $9::boolean

-- name: ready_among
-- Those of the given tasks that are ready, in open queues; without locks.
SELECT id, priority, kind, queue, demand, target, server, attempts,
    coalesce(run_at + $4::bigint * interval '1 microsecond' <= now(), false)
        AND (
            kept_until IS NULL OR kept_until <= now() OR kept_by = $5
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = task.kept_by AND leased_until > now() AND cordoned_at IS NULL
            )
        ) AS may_be_kept
FROM {schema}.task
WHERE id = ANY ($1) AND state || '' = 'ready' AND id <> ALL ($3::bigint[])
    AND (expires_at IS NULL OR expires_at > now())
    AND ($2::text[] IS NULL OR queue = ANY ($2))
    AND NOT EXISTS (SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL)

-- name: ready_commands
-- Commands are for a provider, not for a queue. Those for a server that is not among the open ones, which are $4
-- (provider) and $5 (address), are not even looked at. If there are none of a kind, its servers are not gone through.
-- The state is written so that no index but theirs will do.
SELECT found.id, 0 AS priority, room.kind, found.queue, found.demand, found.target, found.server, found.attempts,
    coalesce(found.run_at + $7::bigint * interval '1 microsecond' <= now(), false)
        AND (
            found.kept_until IS NULL OR found.kept_until <= now() OR found.kept_by = $8
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = found.kept_by AND leased_until > now() AND cordoned_at IS NULL
            )
        ) AS may_be_kept
FROM unnest($1::text[], $2::text[]) AS room (kind, provider) CROSS JOIN LATERAL (
    SELECT 1 FROM {schema}.task WHERE is_command AND state || '' = 'ready' AND kind = room.kind LIMIT 1
) AS one CROSS JOIN LATERAL (
    (
        SELECT id, queue, demand, target, server, attempts, run_at, kept_by, kept_until FROM {schema}.task
        WHERE is_command AND state || '' = 'ready' AND kind = room.kind AND target IS NULL
            AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($6::bigint[])
        ORDER BY id
        LIMIT $3
    )
    UNION ALL
    SELECT its.*
    FROM unnest($4::text[], $5::text[]) AS open (provider, address) CROSS JOIN LATERAL (
        SELECT id, queue, demand, target, server, attempts, run_at, kept_by, kept_until FROM {schema}.task
        WHERE is_command AND state || '' = 'ready' AND kind = room.kind AND target = open.address
            AND (expires_at IS NULL OR expires_at > now()) AND id <> ALL ($6::bigint[])
        ORDER BY id
        LIMIT $3
    ) AS its
    WHERE open.provider = room.provider
) AS found

-- name: lease
SELECT cordoned_at IS NOT NULL AS is_cordoned FROM {schema}.node WHERE id = $1 AND leased_until > now()

-- name: take_seats
-- Asked again, because the look was a statement of its own; a row that somebody else holds is passed over, and one that
-- demands something else by now. The ids are sorted, and each finds its place among them by halving. A join of two
-- short lists, as the planner sees them before it knows how long they are, would go through all of one for each of the
-- other.
UPDATE {schema}.task
SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $1,
    started_at = greatest(now(), enqueued_at),
    overdue = false, kept_by = NULL, kept_until = NULL, holds = ($3::text[])[width_bucket(id, $2::bigint[])],
    provider = coalesce(($4::text[])[width_bucket(id, $2)], provider),
    server = coalesce(($5::text[])[width_bucket(id, $2)], server), slot = ($6::integer[])[width_bucket(id, $2)]
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE id = ANY ($2) AND state || '' = 'ready' AND demand = ($7::text[])[width_bucket(id, $2)]
        AND (is_command OR NOT EXISTS (
            SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL
        ))
    ORDER BY id FOR UPDATE SKIP LOCKED
))
AND EXISTS (
    SELECT 1 FROM {schema}.node WHERE id = $1 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
)
RETURNING true AS is_open, NULL AS demanding, id, claim_no, kind, queue, payload, attempts, max_attempts, crashes,
    overrides, tags, meta, origin, limit_key, group_id, server, slot, demand,
    greatest(ceil(extract(epoch FROM spared_until - now()) * 1000000), 0)::bigint AS spared_for, priority

-- name: pass_seat
-- Ends a plain success (`succeed`), and the first ready task of its kind has its place from now on: one ends and one
-- starts, so that nothing is exceeded that was not before. Limits and server are locked against those who change them,
-- and first, as everywhere: each part asks for something of the one before. The place is not passed on if a limit ($9) or the server was lowered, if the next one is
-- for another server or has just failed on this one, and if a command ($14) is ready or something that demands more than
-- its kind does: then a claim has to weigh it. So it has if a limit might cover the server, or another one that is in
-- use: the address of a server contains what a limit that covers it says of the host.
WITH locked AS MATERIALIZED (
    SELECT name, value, split_part(regexp_replace(name, '^.*://', ''), ':', 1) AS host
    FROM {schema}.task_limit WHERE name = ANY ($9) ORDER BY name FOR UPDATE
),
place AS MATERIALIZED (
    SELECT capacity FROM {schema}.server
    WHERE provider = $11 AND address = $12 AND failures = 0 AND rests = 0 AND resting_until IS NULL
        AND (SELECT count(*) FROM locked) >= 0
    FOR UPDATE
),
well AS MATERIALIZED (
    SELECT ($11::text IS NULL AND (SELECT count(*) FROM locked) >= 0) OR EXISTS (SELECT 1 FROM place) AS is_so
),
mine AS MATERIALIZED (
    SELECT found.id FROM well CROSS JOIN LATERAL (
        SELECT id FROM {schema}.task
        WHERE id = ANY ($1) AND state || '' = 'running' AND claim_no = ($2::bigint[])[width_bucket(id, $1::bigint[])]
            AND NOT cancel_requested AND limit_key IS NULL AND group_id IS NULL AND well.is_so
        FOR UPDATE
    ) AS found
),
open AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NULL AND ($8::text[] IS NULL OR name = ANY ($8))
),
next AS MATERIALIZED (
    SELECT found.id FROM mine CROSS JOIN LATERAL (
        SELECT first.* FROM open CROSS JOIN LATERAL (
            SELECT id, priority, target, server, attempts FROM {schema}.task
            WHERE state = 'ready' AND kind = $7 AND queue = open.name AND demand = ''
                AND (expires_at IS NULL OR expires_at > now()) AND id <> mine.id
            ORDER BY priority DESC, id
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS first
        ORDER BY first.priority DESC, first.id
        LIMIT 1
    ) AS found
    WHERE ($12::text IS NULL OR found.target IS NULL OR found.target = $12)
        AND ($12 IS NULL OR found.attempts = 0 OR found.server IS DISTINCT FROM $12)
        AND NOT EXISTS (
            SELECT 1 FROM open CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task
                WHERE state = 'ready' AND kind = $7 AND queue = open.name AND demand > '' LIMIT 1
            ) AS demanding
        )
        AND NOT EXISTS (
            SELECT 1 FROM unnest($14::text[]) AS command (kind) CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task WHERE is_command AND state || '' = 'ready' AND kind = command.kind LIMIT 1
            ) AS ready
        )
        AND NOT EXISTS (
            SELECT 1 FROM locked WHERE value < (
                SELECT count(*) FROM {schema}.task
                WHERE holds IS NOT NULL AND (
                    name = ANY (string_to_array(holds, E'\n')) OR (slot IS NOT NULL AND strpos(server, host) > 0)
                )
            )
        )
        AND NOT EXISTS (
            SELECT 1 FROM place WHERE capacity < (
                SELECT count(*) FROM {schema}.task WHERE provider = $11 AND server = $12 AND slot IS NOT NULL
            )
        )
        AND ($12 IS NULL OR NOT EXISTS (
            SELECT 1 FROM {schema}.task_limit
            WHERE value IS NOT NULL AND name NOT LIKE 'key:%' AND name NOT LIKE 'kind:%'
                AND strpos($12, split_part(regexp_replace(name, '^.*://', ''), ':', 1)) > 0
        ))
        AND EXISTS (
            SELECT 1 FROM {schema}.node WHERE id = $6 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
        )
),
ended AS (
    DELETE FROM {schema}.task WHERE id = ANY (ARRAY(SELECT id FROM mine)) RETURNING *
),
{succeed.moved},
{succeed.counted},
taken AS (
    UPDATE {schema}.task
    SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $6,
        started_at = greatest(now(), enqueued_at),
        overdue = false, kept_by = NULL, kept_until = NULL, holds = $10, provider = coalesce($11, provider),
        server = coalesce($12, server), slot = $13
    WHERE state || '' = 'ready' AND id = ANY (ARRAY(SELECT next.id FROM next CROSS JOIN ended))
    RETURNING id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, demand,
        greatest(ceil(extract(epoch FROM spared_until - now()) * 1000000), 0)::bigint AS spared_for, priority
)
SELECT moved.id AS ended, NULL AS demanding, taken.* FROM moved LEFT JOIN taken ON true

-- name: pass_place
-- Ends a plain success in a line, and the first that waits there has its place from now on; if that cannot be, nothing
-- happens at all: then the line has to be put in order. So it has if one of it is ready, or of its kind where the node
-- would take it: that one is before it.
WITH locked AS MATERIALIZED (
    SELECT value FROM {schema}.task_limit WHERE name = 'key:' || $7 AND every IS NULL FOR UPDATE
),
line AS MATERIALIZED (
    SELECT $7::text AS kind, $9::text AS limit_key, 'running' AS running, 'ready' AS ready, 'waiting' AS waiting
    FROM locked
    WHERE value IS NOT NULL
),
open AS MATERIALIZED (
    SELECT name FROM {schema}.queue WHERE paused_at IS NULL
),
next AS MATERIALIZED (
    SELECT found.id FROM line CROSS JOIN LATERAL (
        SELECT id, queue, demand, expires_at FROM {schema}.task
        WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.waiting
            AND queue IN (SELECT name FROM open)
        ORDER BY priority DESC, id
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE found.demand = '' AND (found.expires_at IS NULL OR found.expires_at > now())
        AND ($8::text[] IS NULL OR found.queue = ANY ($8))
        AND NOT EXISTS (
            SELECT 1 FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.ready
        )
        AND NOT EXISTS (
            SELECT 1 FROM open CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task WHERE state = 'ready' AND kind = $7 AND queue = open.name LIMIT 1
            ) AS ready
            WHERE $8 IS NULL OR open.name = ANY ($8)
        )
        AND (SELECT value FROM locked) >= (
            SELECT count(*) FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.running
        )
        AND EXISTS (
            SELECT 1 FROM {schema}.node WHERE id = $6 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
        )
),
mine AS MATERIALIZED (
    SELECT found.id FROM next CROSS JOIN LATERAL (
        SELECT id FROM {schema}.task
        WHERE id = ANY ($1) AND state || '' = 'running' AND claim_no = ($2::bigint[])[width_bucket(id, $1::bigint[])]
            AND NOT cancel_requested AND kind = $7 AND limit_key = $9 AND group_id IS NULL AND slot IS NULL
            AND id <> next.id
        FOR UPDATE SKIP LOCKED
    ) AS found
),
ended AS (
    DELETE FROM {schema}.task WHERE id = ANY (ARRAY(SELECT id FROM mine)) RETURNING *
),
{succeed.moved},
{succeed.counted},
taken AS (
    UPDATE {schema}.task
    SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $6,
        started_at = greatest(now(), enqueued_at),
        overdue = false
    WHERE state || '' = 'waiting' AND id = ANY (ARRAY(SELECT next.id FROM next CROSS JOIN ended))
    RETURNING id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, demand,
        greatest(ceil(extract(epoch FROM spared_until - now()) * 1000000), 0)::bigint AS spared_for, priority
)
SELECT moved.id AS ended, NULL AS demanding, taken.* FROM moved CROSS JOIN taken

-- name: keep
-- Room is kept for it, unless another node does so. $4: what it must demand; NULL: anything.
UPDATE {schema}.task SET kept_by = $2, kept_until = now() + $3::bigint * interval '1 microsecond'
WHERE state || '' = 'ready' AND id = ANY (ARRAY(
    SELECT id FROM {schema}.task
    WHERE id = $1 AND state || '' = 'ready' AND ($4::text IS NULL OR demand = $4)
        AND kind = ANY ($5) AND ($6::text[] IS NULL OR queue = ANY ($6)) AND (
            kept_until IS NULL OR kept_until <= now() OR kept_by = $2
            OR NOT EXISTS (
                SELECT 1 FROM {schema}.node
                WHERE node.id = task.kept_by AND leased_until > now() AND cordoned_at IS NULL
            )
        )
        AND (expires_at IS NULL OR expires_at > now())
        AND NOT EXISTS (SELECT 1 FROM {schema}.queue WHERE name = task.queue AND paused_at IS NOT NULL)
    FOR UPDATE SKIP LOCKED
))
RETURNING id, priority, kind, demand, target, server, attempts

-- name: let_go
-- The node keeps no room for it any more.
UPDATE {schema}.task SET kept_by = NULL, kept_until = NULL
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.task WHERE id = $1 AND kept_by = $2 FOR UPDATE SKIP LOCKED
))
RETURNING id

-- name: demands
-- What the ready tasks of a kind demand, in open queues.
WITH RECURSIVE lane (queue, demand) AS (
    SELECT queue.name, (
        SELECT demand FROM {schema}.task
        WHERE state = 'ready' AND kind = $1 AND queue = queue.name ORDER BY demand LIMIT 1
    )
    FROM {schema}.queue
    WHERE queue.paused_at IS NULL AND ($2::text[] IS NULL OR queue.name = ANY ($2))
    UNION ALL
    SELECT lane.queue, (
        SELECT task.demand FROM {schema}.task
        WHERE task.state = 'ready' AND task.kind = $1 AND task.queue = lane.queue AND task.demand > lane.demand
        ORDER BY task.demand LIMIT 1
    )
    FROM lane WHERE lane.demand IS NOT NULL
)
SELECT DISTINCT demand FROM lane WHERE demand IS NOT NULL

-- name: first_in_lanes
-- The first ready tasks of a kind and some demands behind the one with priority $4 and id $5, in open queues; without
-- those that stand in the queues $7 and demand $8. Two questions, because the index is in order of the one down and of
-- the other up.
SELECT NULL AS reason, NULL::timestamptz AS finished_at, NULL AS result, task.*,
    CASE WHEN kept_until > now() THEN kept_by END AS keeper
FROM {schema}.task
WHERE id = ANY (ARRAY(
    SELECT found.id
    FROM unnest($2::text[]) AS lane (demand)
    CROSS JOIN {schema}.queue
    CROSS JOIN LATERAL (
        (
            SELECT id, priority FROM {schema}.task
            WHERE state = 'ready' AND kind = $1 AND queue = queue.name AND demand = lane.demand
                AND priority = $4 AND id > $5 AND (expires_at IS NULL OR expires_at > now())
            ORDER BY id LIMIT $6
        )
        UNION ALL
        (
            SELECT id, priority FROM {schema}.task
            WHERE state = 'ready' AND kind = $1 AND queue = queue.name AND demand = lane.demand
                AND priority < $4 AND (expires_at IS NULL OR expires_at > now())
            ORDER BY priority DESC, id LIMIT $6
        )
    ) AS found
    WHERE queue.paused_at IS NULL AND ($3::text[] IS NULL OR queue.name = ANY ($3))
        AND NOT EXISTS (
            SELECT 1 FROM unnest($7::text[], $8::text[]) AS passed (queue, demand)
            WHERE passed.queue = queue.name AND passed.demand = lane.demand
        )
    ORDER BY found.priority DESC, found.id LIMIT $6
))

-- name: place_of
SELECT kind, state, priority, limit_key, after_group FROM {schema}.task
WHERE id = $1 AND state || '' IN ('ready', 'waiting')

-- name: ahead_ready
-- How many ready tasks of a kind are before a place: the first of every lane, and of these the better ones.
WITH RECURSIVE lane (queue, demand) AS (
    SELECT queue.name, (
        SELECT demand FROM {schema}.task
        WHERE state = 'ready' AND kind = $1 AND queue = queue.name ORDER BY demand LIMIT 1
    )
    FROM {schema}.queue
    UNION ALL
    SELECT lane.queue, (
        SELECT task.demand FROM {schema}.task
        WHERE task.state = 'ready' AND task.kind = $1 AND task.queue = lane.queue AND task.demand > lane.demand
        ORDER BY task.demand LIMIT 1
    )
    FROM lane WHERE lane.demand IS NOT NULL
)
SELECT count(*) FROM (
    SELECT 1 FROM lane CROSS JOIN LATERAL (
        SELECT priority, id FROM {schema}.task
        WHERE state = 'ready' AND kind = $1 AND queue = lane.queue AND demand = lane.demand
            AND priority >= $2
        ORDER BY priority DESC, id LIMIT $4
    ) AS first
    WHERE lane.demand IS NOT NULL AND (first.priority > $2 OR first.id < $3)
    LIMIT $4
) AS before

-- name: ahead_in_line
WITH line AS MATERIALIZED (
    SELECT $1::text AS kind, $2::text AS limit_key, $3::text AS state
)
SELECT count(*) FROM (
    SELECT 1 FROM line CROSS JOIN LATERAL (
        SELECT priority, id FROM {schema}.task
        WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.state
            AND priority >= $4
        ORDER BY priority DESC, id LIMIT $6
    ) AS first
    WHERE first.priority > $4 OR first.id < $5
) AS before

-- name: ahead_after_groups
-- Among those who wait for a group, which no index has in order; it is asked for people.
SELECT count(*) FROM (
    SELECT 1 FROM {schema}.task
    WHERE after_group IS NOT NULL AND kind = $1 AND limit_key IS NOT DISTINCT FROM $2
        AND (priority > $3 OR (priority = $3 AND id < $4))
    LIMIT $5
) AS before
