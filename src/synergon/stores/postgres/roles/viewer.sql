-- Reads everything: tasks with their arguments and results, history, nodes, queues, limits, servers, schedules, audit.
-- Changes nothing.
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {schema}.meta, {schema}.task, {schema}.history, {schema}.pruned, {schema}.tally, {schema}.live_count, {schema}.queue,
    {schema}.node, {schema}.past_node, {schema}.task_limit, {schema}.rate, {schema}.batch_alarm, {schema}.provider, {schema}.server, {schema}.task_group,
    {schema}.audit_log, {schema}.schedule, {schema}.key_hold, {schema}.dependency,
    {schema}.retention, {schema}.statistics TO {role};
