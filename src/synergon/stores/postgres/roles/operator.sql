-- Reads everything, as a viewer does. Cancels, retries, deletes and moves tasks, pauses queues, changes limits, servers
-- and schedules, and instructs nodes; the audit records this. Runs no task, and changes only the cordon of nodes.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.meta, {schema}.task, {schema}.history, {schema}.pruned, {schema}.tally, {schema}.live_count, {schema}.queue,
    {schema}.node, {schema}.past_node, {schema}.task_limit, {schema}.rate, {schema}.batch_alarm, {schema}.provider, {schema}.server, {schema}.task_group,
    {schema}.statistics, {schema}.audit_log, {schema}.lock_row, {schema}.schedule, {schema}.key_hold, {schema}.dependency TO {role};
GRANT INSERT, DELETE ON {schema}.task, {schema}.history TO {role};
GRANT UPDATE (state, priority, run_at, cancel_requested, extended_by, meta, errors, ended_attempts, is_dependent,
    has_dependents, requirements, fair_tag,
    reserved_by, reserved_until)
    ON {schema}.task TO {role};
GRANT INSERT, UPDATE ON {schema}.tally TO {role};
GRANT INSERT, UPDATE, DELETE ON {schema}.batch_alarm TO {role};
GRANT UPDATE (ended_at, state) ON {schema}.task_group TO {role};
GRANT UPDATE (ended_as), DELETE ON {schema}.dependency TO {role};
GRANT INSERT, UPDATE (paused_at) ON {schema}.queue TO {role};
GRANT UPDATE (value, per, starts, burst, by_units, next_at) ON {schema}.task_limit TO {role};
GRANT INSERT, UPDATE (capacity), DELETE ON {schema}.server TO {role};
GRANT UPDATE (cordoned_at) ON {schema}.node TO {role};
GRANT INSERT, UPDATE (done_at, outcome) ON {schema}.audit_log TO {role};
-- A schedule that an operator runs creates a task, which is counted.
GRANT INSERT, UPDATE (numbers) ON {schema}.statistics TO {role};
GRANT SELECT, INSERT, UPDATE ON {schema}.retention TO {role};
GRANT INSERT, UPDATE, DELETE ON {schema}.schedule, {schema}.key_hold TO {role};
-- Locking a row requires the right to update one of its columns. No statement reads these columns.
GRANT UPDATE (locked) ON {schema}.lock_row, {schema}.provider TO {role};
GRANT UPDATE (overdue, meta) ON {schema}.history TO {role};
