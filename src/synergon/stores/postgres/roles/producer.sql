-- Enqueues tasks and groups, and sends hints about them. Reads neither arguments nor results of tasks, nor the history;
-- changes no task but its time and state, where a key queue or a group demands it.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.meta, {schema}.node, {schema}.task_limit, {schema}.rate, {schema}.provider, {schema}.server,
    {schema}.queue, {schema}.lock_row TO {role};
GRANT INSERT (name) ON {schema}.queue TO {role};
GRANT INSERT ({inserted}) ON {schema}.task TO {role};
GRANT SELECT (id, kind, queue, state, priority, run_at, limit_key, group_id, after_group, key, provider, server, slot,
    holds) ON {schema}.task TO {role};
-- Key queues and groups move tasks, and the row of a key is locked.
GRANT UPDATE (state, run_at, after_group, reserved_by, reserved_until) ON {schema}.task TO {role};
GRANT SELECT, INSERT (name, created_at), UPDATE (ended_at, then_id) ON {schema}.task_group TO {role};
-- To lock a row takes the right to update one of its columns; no statement reads this one.
GRANT UPDATE (locked) ON {schema}.lock_row, {schema}.task_limit TO {role};
