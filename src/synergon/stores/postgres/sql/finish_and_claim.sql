-- One ends and one starts in its place, so that nothing is exceeded that was not before. Limits and server are locked
-- against those who change them, and first, as everywhere: each part asks for something of the one before. Where a
-- place is not passed on a claim has to weigh who follows.

-- name: pass_seat
-- Ends a plain success (`succeed`), and the first ready task of the kinds ($10) that take the very same places ($19) has
-- its own from now on: in the limits, and on the server. $7 are the limits that it holds and those that would cover the
-- server; the latter are $16. If the server is not well, nothing happens at all.
-- The others among the kinds take other places beside, or run on other nodes: if one of them has a better task (of
-- those that are urgent, $21, any one is), nothing is passed on, and that task is told, provided that there is only
-- this place: of several, others may leave it another one at the same moment. Those that have nothing in common with
-- this one but a limit that may cover servers of both say whose servers ($20), and count only if there is one; if it
-- may cover servers of a provider of which nobody has said anything, nothing is passed on, either.
-- Nor is it if a limit or the server was lowered; if the next one is for another server or has just failed on this one;
-- if a command ($17) is ready, or something that demands more than its kind does; if another server has more room, or
-- as much and its turn ($18). The address of a server contains what a limit that covers it says of the host.
WITH locked AS MATERIALIZED (
    SELECT name, value, every, CASE
        WHEN name LIKE 'key:%' OR name LIKE 'kind:%' THEN NULL
        ELSE split_part(regexp_replace(name, '^.*://', ''), ':', 1)
    END AS host
    FROM {schema}.task_limit WHERE name = ANY ($7) ORDER BY name FOR UPDATE
),
place AS MATERIALIZED (
    SELECT found.capacity, $13::text IS NULL OR found.address IS NOT NULL AS is_well
    FROM (SELECT count(*) FROM locked) AS all_locked LEFT JOIN LATERAL (
        SELECT capacity, address FROM {schema}.server
        WHERE provider = $13 AND address = $14 AND failures = 0 AND rests = 0 AND resting_until IS NULL
            AND all_locked.count >= 0
        FOR UPDATE
    ) AS found ON true
),
own AS MATERIALIZED (
    SELECT found.id FROM place CROSS JOIN LATERAL (
        SELECT id FROM {schema}.task
        WHERE id = ($1::bigint[])[1] AND state || '' = 'running' AND claim_no = ($2::bigint[])[1]
            AND NOT cancel_requested AND group_id IS NULL AND place.is_well
            AND kind = $8 AND limit_key IS NOT DISTINCT FROM $9 AND slot IS NOT DISTINCT FROM $15::integer
        FOR UPDATE
    ) AS found
),
open AS MATERIALIZED (
    SELECT name, $6::text[] IS NULL OR name = ANY ($6) AS is_served FROM {schema}.queue WHERE paused_at IS NULL
),
beside AS MATERIALIZED (
    SELECT DISTINCT elsewhere.provider FROM locked CROSS JOIN LATERAL (
        SELECT provider FROM {schema}.server WHERE server.provider <> $13 AND strpos(address, host) > 0
    ) AS elsewhere
    WHERE name = ANY ($16::text[]) AND value IS NOT NULL
),
asked AS MATERIALIZED (
    SELECT kind, rank, is_heir, is_urgent
    FROM unnest($10::text[], $11::integer[], $19::boolean[], $20::text[], $21::boolean[])
        AS room (kind, rank, is_heir, provider, is_urgent)
    WHERE provider IS NULL OR provider IN (SELECT beside.provider FROM beside)
),
mine AS MATERIALIZED (
    SELECT id FROM own
),
ready AS MATERIALIZED (
    SELECT found.*, asked.rank FROM mine CROSS JOIN asked CROSS JOIN open CROSS JOIN LATERAL (
        SELECT id, priority, target, server, attempts FROM {schema}.task
        WHERE state = 'ready' AND kind = asked.kind AND queue = open.name AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now()) AND id <> mine.id
        ORDER BY priority DESC, id
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE open.is_served AND asked.is_heir
),
first AS MATERIALIZED (
    SELECT id, target, server, attempts, priority, rank FROM ready ORDER BY priority DESC, rank, id LIMIT 1
),
better AS MATERIALIZED (
    SELECT found.*, asked.kind, open.name AS queue
    FROM first CROSS JOIN asked CROSS JOIN open CROSS JOIN LATERAL (
        SELECT id, priority, target, server, attempts FROM {schema}.task
        WHERE state = 'ready' AND kind = asked.kind AND queue = open.name AND requirements = ''
            AND (expires_at IS NULL OR expires_at > now())
        ORDER BY priority DESC, id
        LIMIT 1
    ) AS found
    WHERE NOT asked.is_heir AND (
        asked.is_urgent
        OR found.priority > first.priority
        OR (found.priority = first.priority AND (asked.rank, found.id) < (first.rank, first.id))
    )
    ORDER BY asked.is_urgent DESC, found.priority DESC, asked.rank, found.id
    LIMIT 1
),
use AS MATERIALIZED (
    SELECT value AS most, holding.*, false AS is_server
    FROM locked CROSS JOIN LATERAL (
        SELECT count(*) AS at_most, count(*) FILTER (WHERE name = ANY (string_to_array(holds, E'\n'))) AS at_least
        FROM {schema}.task
        WHERE holds IS NOT NULL AND (
            name = ANY (string_to_array(holds, E'\n')) OR (slot IS NOT NULL AND strpos(server, host) > 0)
        )
    ) AS holding
    UNION ALL
    SELECT capacity, holding.count, holding.count, true
    FROM place CROSS JOIN LATERAL (
        SELECT count(*) FROM {schema}.task WHERE provider = $13 AND server = $14 AND slot IS NOT NULL
    ) AS holding
    WHERE $13 IS NOT NULL
),
other AS MATERIALIZED (
    SELECT failures > 0 OR rests > 0 AS is_ailing,
        used.count::float / coalesce(nullif(capacity, 0), 2147483648) AS load
    FROM {schema}.server CROSS JOIN LATERAL (
        SELECT count(*) FROM {schema}.task WHERE provider = $13 AND task.server = server.address AND slot IS NOT NULL
    ) AS used
    WHERE server.provider = $13 AND address <> $14 AND (capacity IS NULL OR used.count < capacity)
        AND (resting_until IS NULL OR resting_until <= now())
),
heir AS MATERIALIZED (
    SELECT id, is_ours FROM (
        SELECT id, true AS is_ours, target, server, attempts FROM first WHERE NOT EXISTS (SELECT 1 FROM better)
        UNION ALL
        SELECT id, false, target, server, attempts FROM better WHERE EXISTS (
            SELECT 1 FROM use WHERE most = 1 AND at_least = 1 AND (
                NOT is_server OR NOT EXISTS (SELECT 1 FROM {schema}.server WHERE provider = $13 AND address <> $14)
            )
        )
    ) AS candidate
    WHERE ($14::text IS NULL OR target IS NULL OR target = $14)
        AND ($14 IS NULL OR attempts = 0 OR server IS DISTINCT FROM $14)
        AND NOT EXISTS (
            SELECT 1 FROM asked CROSS JOIN open CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task
                WHERE state = 'ready' AND kind = asked.kind AND queue = open.name AND requirements > '' LIMIT 1
            ) AS demanding
            WHERE open.is_served OR NOT asked.is_heir
        )
        AND NOT EXISTS (
            SELECT 1 FROM unnest($17::text[]) AS command (kind) CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task WHERE is_command AND state || '' = 'ready' AND kind = command.kind LIMIT 1
            ) AS ready
        )
        AND NOT EXISTS (SELECT 1 FROM use WHERE at_most > most)
        AND NOT EXISTS (SELECT 1 FROM beside WHERE provider <> ALL (array_remove($20, NULL)))
        AND NOT EXISTS (
            SELECT 1 FROM other CROSS JOIN (
                SELECT (at_least - 1)::float / coalesce(nullif(most, 0), 2147483648) AS load FROM use WHERE is_server
            ) AS this
            WHERE other.is_ailing OR other.load < this.load OR (other.load = this.load AND $18::boolean)
        )
),
next AS MATERIALIZED (
    SELECT id FROM heir
    WHERE is_ours AND EXISTS (
        SELECT 1 FROM {schema}.node WHERE id = $5 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
    )
),
ended AS (
    DELETE FROM {schema}.task WHERE id = (SELECT id FROM mine) RETURNING *
),
{succeed.moved},
{succeed.counted},
taken AS (
    UPDATE {schema}.task
    SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $5,
        started_at = greatest(now(), enqueued_at),
        overdue = false, reserved_by = NULL, reserved_until = NULL, holds = $12, provider = coalesce($13, provider),
        server = coalesce($14, server), slot = $15
    WHERE state || '' IN ('ready', 'waiting') AND id = (SELECT next.id FROM next CROSS JOIN ended)
    RETURNING id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, requirements,
        greatest(ceil(extract(epoch FROM protected_until - now()) * 1000000), 0)::bigint AS protected_for, priority
)
SELECT (SELECT ARRAY[better.id::text, kind, queue] FROM better CROSS JOIN heir) AS better, false AS is_one_let_go, taken.*
FROM moved LEFT JOIN taken ON true

-- name: pass_seat_in_line
-- The same for one that stands in a line, too ($8, $9), where the first that waits must be there: it has the place, or
-- is ready, if somebody else is before it; it is told if there may be room for it even so. If nobody waits, or the line
-- has to be put in order, nothing happens at all.
WITH {pass_seat.locked},
{pass_seat.place},
{pass_seat.own},
{pass_seat.open},
{pass_seat.beside},
{pass_seat.asked},
{pass_place.line},
{pass_place.follower},
{pass_place.mine},
{pass_seat.ready},
first AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, target, server, attempts, priority, rank FROM ready
        UNION ALL
        SELECT id, target, server, attempts, priority, (SELECT rank FROM asked WHERE kind = $8 AND is_heir)
        FROM follower WHERE is_served
    ) AS candidate
    ORDER BY priority DESC, rank, id
    LIMIT 1
),
{pass_seat.better},
{pass_seat.use},
{pass_seat.other},
{pass_seat.heir},
{pass_seat.next},
{pass_seat.ended},
{succeed.moved},
{succeed.counted},
{pass_seat.taken},
{pass_place.promoted}
SELECT (SELECT ARRAY[better.id::text, kind, queue] FROM better CROSS JOIN heir) AS better,
    EXISTS (SELECT 1 FROM promoted) AND NOT EXISTS (
        SELECT 1 FROM use WHERE at_least >= most AND (NOT is_server OR NOT EXISTS (SELECT 1 FROM other))
    ) AS is_one_let_go,
    taken.*
FROM moved LEFT JOIN taken ON true

-- name: pass_place
-- The same for one that has nothing but a place in a line. It is not passed on if another of the kind is ready: that
-- one need not wait for it.
WITH {pass_seat.locked},
own AS MATERIALIZED (
    SELECT found.id FROM (SELECT count(*) FROM locked) AS all_locked CROSS JOIN LATERAL (
        SELECT id FROM {schema}.task
        WHERE id = ($1::bigint[])[1] AND state || '' = 'running' AND claim_no = ($2::bigint[])[1]
            AND NOT cancel_requested AND group_id IS NULL AND all_locked.count > 0
            AND kind = $8 AND limit_key = $9 AND slot IS NULL
        FOR UPDATE
    ) AS found
),
{pass_seat.open},
line AS MATERIALIZED (
    SELECT $8::text AS kind, $9::text AS limit_key, value, 'running' AS running, 'ready' AS ready, 'waiting' AS waiting
    FROM own CROSS JOIN locked WHERE name = 'key:' || $8 AND value IS NOT NULL AND every IS NULL
),
follower AS MATERIALIZED (
    SELECT found.* FROM line CROSS JOIN LATERAL (
        SELECT id, priority, requirements, expires_at, target, server, attempts, is_served
        FROM {schema}.task JOIN open ON open.name = queue
        WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.waiting
        ORDER BY priority DESC, id
        LIMIT 1
        FOR UPDATE OF task SKIP LOCKED
    ) AS found
    WHERE found.requirements = '' AND (found.expires_at IS NULL OR found.expires_at > now())
        AND line.value >= (
            SELECT count(*) FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.running
        ) + (
            SELECT count(*) FROM {schema}.task
            WHERE kind = line.kind AND limit_key = line.limit_key AND after_group IS NULL AND state = line.ready
        )
),
mine AS MATERIALIZED (
    SELECT id FROM own WHERE EXISTS (SELECT 1 FROM follower)
),
next AS MATERIALIZED (
    SELECT id FROM follower
    WHERE is_served
        AND NOT EXISTS (
            SELECT 1 FROM open CROSS JOIN LATERAL (
                SELECT 1 FROM {schema}.task WHERE state = 'ready' AND kind = $8 AND queue = open.name LIMIT 1
            ) AS ready
            WHERE open.is_served
        )
        AND EXISTS (
            SELECT 1 FROM {schema}.node WHERE id = $5 AND leased_until > now() AND cordoned_at IS NULL FOR KEY SHARE
        )
),
{pass_seat.ended},
{succeed.moved},
{succeed.counted},
taken AS (
    UPDATE {schema}.task
    SET state = 'running', claim_no = claim_no + 1, attempts = attempts + 1, node_id = $5,
        started_at = greatest(now(), enqueued_at), overdue = false
    WHERE state || '' = 'waiting' AND id = (SELECT next.id FROM next CROSS JOIN ended)
    RETURNING id, claim_no, kind, queue, payload, attempts, max_attempts, crashes, overrides, tags, meta, origin,
        limit_key, group_id, server, slot, requirements,
        greatest(ceil(extract(epoch FROM protected_until - now()) * 1000000), 0)::bigint AS protected_for, priority
),
promoted AS (
    UPDATE {schema}.task SET state = 'ready'
    WHERE state || '' = 'waiting' AND id = (
        SELECT follower.id FROM follower CROSS JOIN ended
        WHERE NOT EXISTS (SELECT 1 FROM next WHERE next.id = follower.id)
    )
    RETURNING id
)
SELECT NULL::text[] AS better, false AS is_one_let_go, taken.* FROM moved LEFT JOIN taken ON true
