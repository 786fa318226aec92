-- Enqueues tasks, groups and flows, and sends hints about them. Reads neither arguments nor results of tasks, and of
-- final tasks only the states. Changes tasks only as key queues, tenants and dependencies require: due time, turn and
-- state.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.meta, {schema}.node, {schema}.task_limit, {schema}.rate, {schema}.provider, {schema}.server,
    {schema}.queue, {schema}.lock_row TO {role};
GRANT INSERT (name) ON {schema}.queue TO {role};
GRANT INSERT ({inserted}) ON {schema}.task TO {role};
GRANT SELECT (id, kind, queue, state, priority, run_at, limit_key, group_id, is_dependent, has_dependencies,
    has_dependents, key, provider, server, slot, holds, requirements, fair_key, fair_step, fair_tag) ON {schema}.task TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.batch_alarm TO {role};
GRANT SELECT, INSERT, UPDATE ON {schema}.key_hold TO {role};
-- A producer writes how many tasks it has enqueued, and reads no statistics.
GRANT INSERT, UPDATE (numbers), SELECT (span, at, kind, queue, source) ON {schema}.statistics TO {role};
-- Key queues and dependencies move tasks, tenants get turns, and the row of the task that holds a unique key is locked.
GRANT UPDATE (state, run_at, is_dependent, has_dependents, fair_tag, reserved_by, reserved_until) ON {schema}.task TO {role};
GRANT SELECT, INSERT (name, created_at, is_flow), UPDATE (ended_at, then_id, state) ON {schema}.task_group TO {role};
GRANT SELECT (id, state, group_id) ON {schema}.history TO {role};
GRANT SELECT, INSERT, DELETE ON {schema}.dependency TO {role};
-- Locking a row requires the right to update one of its columns. No statement reads this column.
GRANT UPDATE (locked) ON {schema}.lock_row, {schema}.task_limit TO {role};
