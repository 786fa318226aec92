-- Runs tasks: claims, ends, retries and prunes them, and declares the limits, servers and schedules of its code. Pauses
-- no queue, takes no operator action, and replaces no secret.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.meta TO {role};
GRANT SELECT, INSERT, UPDATE, DELETE ON {schema}.task, {schema}.history, {schema}.node, {schema}.past_node, {schema}.rate, {schema}.batch_alarm,
    {schema}.server, {schema}.task_group, {schema}.schedule, {schema}.key_hold, {schema}.dependency,
    {schema}.statistics TO {role};
GRANT SELECT, INSERT, UPDATE ON {schema}.tally, {schema}.live_count, {schema}.pruned, {schema}.task_limit, {schema}.provider,
    {schema}.retention TO {role};
GRANT SELECT, INSERT (name) ON {schema}.queue TO {role};
-- A node reports the outcome of actions that name it, and prunes old ones.
GRANT SELECT, UPDATE (done_at, outcome), DELETE ON {schema}.audit_log TO {role};
GRANT SELECT, UPDATE (locked) ON {schema}.lock_row TO {role};
