-- name: smallest_ready_tag
-- Takes one step in the index of ready groups.
SELECT min(fair_tag) FROM synergon_task
WHERE state = 'ready' AND kind = ? AND queue = ? AND requirements = ? AND priority = ? AND fair_tag > 0

-- name: largest_started_tag
-- Takes one step in the index of tasks with tags that are not ready.
SELECT max(fair_tag) FROM synergon_task WHERE kind = ? AND priority = ? AND fair_tag > 0 AND state <> 'ready'

-- name: largest_live_tags
-- The parameter is a list of [kind, priority, fair_key]. Takes one step in the index of tenants for each. Returns the
-- place of the tenant in the list and not its name, because a name that is not UTF-8 may come back as another text.
SELECT place, (
    SELECT max(fair_tag) FROM synergon_task AS task
    WHERE task.kind = tenant.kind AND task.fair_key = tenant.fair_key AND task.priority = tenant.priority AND task.fair_tag > 0
) AS fair_tag
FROM (
    SELECT
        key AS place, json_extract(value, '$[0]') AS kind, json_extract(value, '$[1]') AS priority,
        json_extract(value, '$[2]') AS fair_key
    FROM json_each(?)
) AS tenant

-- name: oldest_with_tags
-- The condition on the tag is written so that only the index of the oldest tasks matches it.
SELECT id FROM synergon_task
WHERE state = 'ready' AND kind = ? AND queue = ? AND requirements = ? AND priority = ? AND fair_tag >= 1
ORDER BY id LIMIT ?

-- name: untagged_tasks
SELECT id, kind, priority, fair_key, fair_step FROM synergon_task
WHERE id IN (SELECT value FROM json_each(?)) AND state = 'ready' AND fair_key IS NOT NULL AND fair_tag = 0
ORDER BY id

-- name: set_fair_tags
-- The parameter is a list of [id, tag].
UPDATE synergon_task SET fair_tag = tagged.fair_tag
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS fair_tag FROM json_each(?)
) AS tagged
WHERE synergon_task.id = tagged.id AND synergon_task.fair_tag = 0

-- name: tenants_ahead
-- The tenants of the tasks of a ready group that precede this position, at most :limit tasks.
SELECT fair_key, count(*) FROM (
    SELECT fair_key FROM synergon_task
    WHERE state = 'ready' AND kind = :kind AND queue = :queue AND requirements = :requirements
        AND priority >= :priority AND (priority > :priority OR (fair_tag, id) < (:fair_tag, :id))
    ORDER BY priority DESC, fair_tag, id
    LIMIT :limit
)
WHERE fair_key IS NOT NULL
GROUP BY fair_key
