-- STRICT tables reject values of a wrong type, also from other programs.

-- Live tasks. A task is in exactly one of the two tables of tasks; its row contains its state and its due time.
CREATE TABLE synergon_task (
    id               INTEGER PRIMARY KEY CHECK (id > 0),
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    -- The check does not use IN: SQLite would build a temporary table for the list in every statement that writes a
    -- row.
    state            TEXT    NOT NULL
        CHECK (state = 'ready' OR state = 'running' OR state = 'scheduled' OR state = 'waiting'),
    priority         INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    limit_key        TEXT,    -- the key of its key queue
    group_id         INTEGER, -- the group that it belongs to
    parent_id        INTEGER, -- the task that has created it
    is_dependent     INTEGER NOT NULL DEFAULT 0 CHECK (is_dependent IN (0, 1)), -- waits for tasks that it needs
    has_dependencies INTEGER NOT NULL DEFAULT 0 CHECK (has_dependencies IN (0, 1)), -- whether they are open or not
    has_dependents   INTEGER NOT NULL DEFAULT 0 CHECK (has_dependents IN (0, 1)), -- other tasks may depend on it
    batch_id         INTEGER, -- the leader of the batch in which it runs
    is_command       INTEGER NOT NULL DEFAULT 0 CHECK (is_command IN (0, 1)),
    target           TEXT,    -- the only server that may run it
    provider         TEXT,
    fair_key         TEXT,    -- its tenant
    fair_step        INTEGER NOT NULL DEFAULT 0, -- the distance between the tags of its tenant
    fair_tag         INTEGER NOT NULL DEFAULT 0 CHECK (fair_tag >= 0), -- its turn among the tasks of its kind; 0: none
    server           TEXT,    -- the server of its last attempt
    slot             INTEGER,
    holds            TEXT,    -- the names of the limits whose permits it holds, one per line
    payload          BLOB    NOT NULL,
    attempts         INTEGER NOT NULL DEFAULT 0,
    max_attempts     INTEGER,
    -- What a start counts for rates of limits.
    units            INTEGER NOT NULL DEFAULT 1 CHECK (units BETWEEN 1 AND 2147483647),
    crashes          INTEGER NOT NULL DEFAULT 0,
    owner_deaths     INTEGER NOT NULL DEFAULT 0, -- nodes that died while they ran it, since an attempt ended
    server_failures  INTEGER NOT NULL DEFAULT 0, -- attempts that blamed their server, and cost nothing
    claim_no         INTEGER NOT NULL DEFAULT 0,
    finished_no       INTEGER, -- the last claim for which an outcome was applied
    node_id          TEXT,
    key              TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    overdue          INTEGER NOT NULL DEFAULT 0,
    enqueued_at      INTEGER NOT NULL,
    started_at       INTEGER,
    expires_at       INTEGER,
    overrides        BLOB,
    tags             TEXT,
    meta             BLOB,
    title            TEXT,    -- a short text for people
    keep_for         INTEGER CHECK (keep_for BETWEEN 0 AND 3162240000000000), -- how long it remains in the history
    progress         BLOB,
    errors           BLOB,
    ended_attempts   BLOB, -- ended attempts, except the successful one
    origin           TEXT, -- the engine that waits for its result
    requirements           TEXT    NOT NULL DEFAULT '', -- empty: those that the claiming node has for its kind
    reserved_by          TEXT,    -- the node that reserves capacity for it
    reserved_until       INTEGER,
    protected_until     INTEGER, -- not preempted before this moment
    extended_by      INTEGER, -- by how much the timeout of its attempt was extended
    CHECK ((state = 'running') = (node_id IS NOT NULL)),
    CHECK ((reserved_by IS NULL) = (reserved_until IS NULL)),
    CHECK (reserved_by IS NULL OR state = 'ready'),
    CHECK (state = 'running' OR (holds IS NULL AND slot IS NULL)),
    CHECK (slot IS NULL OR (provider IS NOT NULL AND server IS NOT NULL AND holds IS NOT NULL)),
    CHECK (extended_by IS NULL OR state = 'running'),
    CHECK (batch_id IS NULL OR state = 'running'),
    -- `scheduled`: the next `wake` finds out which of its dependencies have ended.
    CHECK (is_dependent = 0 OR state = 'waiting' OR state = 'scheduled'),
    CHECK (state <> 'waiting' OR limit_key IS NOT NULL OR is_dependent = 1)
) STRICT;
-- Ready groups are contiguous in this index: a group that a node cannot run is skipped in one step.
CREATE INDEX synergon_task_ready ON synergon_task (kind, queue, requirements, priority DESC, fair_tag, id)
    WHERE state = 'ready';
-- The first index finds the largest tag of a tenant, the second the largest tag of the tasks that have started, the
-- third the oldest tasks of a kind whose tenants take turns.
CREATE INDEX synergon_task_tenant ON synergon_task (kind, fair_key, priority, fair_tag) WHERE fair_tag > 0;
CREATE INDEX synergon_task_started ON synergon_task (kind, priority, fair_tag) WHERE fair_tag > 0 AND state <> 'ready';
CREATE INDEX synergon_task_oldest ON synergon_task (kind, queue, requirements, priority, id)
    WHERE state = 'ready' AND fair_tag >= 1;
CREATE INDEX synergon_task_due ON synergon_task (run_at, id, kind, queue) WHERE state = 'scheduled';
CREATE INDEX synergon_task_running ON synergon_task (node_id) WHERE state = 'running';
CREATE INDEX synergon_task_expiry ON synergon_task (expires_at) WHERE expires_at IS NOT NULL AND state <> 'running';
CREATE UNIQUE INDEX synergon_task_key ON synergon_task (kind, key) WHERE key IS NOT NULL;
-- The first index contains all columns that balancing key queues needs, so that no rows are read. Its column `state`
-- precedes the key, so that the few ready or running tasks share pages. The second finds when the next task of a key
-- queue becomes due.
CREATE INDEX synergon_task_key_queue ON synergon_task (kind, state, limit_key, priority DESC, id, queue, is_dependent)
    WHERE limit_key IS NOT NULL AND is_dependent = 0;
CREATE INDEX synergon_task_deferred ON synergon_task (kind, limit_key, run_at)
    WHERE limit_key IS NOT NULL AND state = 'scheduled';
-- The permits of running tasks, with all columns that are read. A slot of a server belongs to at most one task.
CREATE INDEX synergon_task_holding ON synergon_task (holds, provider, server, slot) WHERE holds IS NOT NULL;
CREATE UNIQUE INDEX synergon_task_server_slot ON synergon_task (provider, server, slot) WHERE slot IS NOT NULL;
CREATE INDEX synergon_task_command ON synergon_task (provider, target) WHERE is_command = 1;
CREATE INDEX synergon_task_target ON synergon_task (kind, target, id) WHERE is_command = 1 AND state = 'ready';
CREATE INDEX synergon_task_group ON synergon_task (group_id, state) WHERE group_id IS NOT NULL;
CREATE INDEX synergon_task_parent ON synergon_task (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX synergon_task_dependent ON synergon_task (kind, queue, state) WHERE is_dependent = 1;
CREATE INDEX synergon_task_unsettled ON synergon_task (run_at) WHERE is_dependent = 1 AND state = 'scheduled';

-- The history: final tasks.
CREATE TABLE synergon_history (
    id               INTEGER PRIMARY KEY CHECK (id > 0),
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    state            TEXT    NOT NULL CHECK (state = 'succeeded' OR state = 'failed' OR state = 'cancelled'),
    reason           TEXT    CHECK ((state = 'succeeded') = (reason IS NULL)),
    priority         INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    limit_key        TEXT,
    group_id         INTEGER,
    parent_id        INTEGER,
    has_dependencies INTEGER NOT NULL CHECK (has_dependencies IN (0, 1)),
    has_dependents   INTEGER NOT NULL CHECK (has_dependents IN (0, 1)),
    batch_id         INTEGER,
    is_command       INTEGER NOT NULL CHECK (is_command IN (0, 1)),
    target           TEXT,
    provider         TEXT,
    fair_key         TEXT,
    fair_step        INTEGER NOT NULL,
    payload          BLOB    NOT NULL,
    result           BLOB,
    attempts         INTEGER NOT NULL,
    max_attempts     INTEGER,
    -- What a start counts for rates of limits.
    units            INTEGER NOT NULL DEFAULT 1 CHECK (units BETWEEN 1 AND 2147483647),
    crashes          INTEGER NOT NULL,
    owner_deaths     INTEGER NOT NULL,
    server_failures  INTEGER NOT NULL,
    claim_no         INTEGER NOT NULL,
    finished_no       INTEGER,
    node_id          TEXT,
    server           TEXT,
    key              TEXT,
    cancel_requested INTEGER NOT NULL,
    overdue          INTEGER NOT NULL,
    enqueued_at      INTEGER NOT NULL,
    started_at       INTEGER,
    -- The order of final events. The limit keeps a moment in the far future from stopping the readers.
    finished_at      INTEGER NOT NULL CHECK (finished_at BETWEEN 0 AND 253402300799999999),
    expires_at       INTEGER,
    overrides        BLOB,
    tags             TEXT,
    meta             BLOB,
    title            TEXT,
    keep_for         INTEGER CHECK (keep_for BETWEEN 0 AND 3162240000000000),
    progress         BLOB,
    errors           BLOB,
    ended_attempts   BLOB,
    requirements           TEXT    NOT NULL
) STRICT;
CREATE INDEX synergon_history_age ON synergon_history (state, finished_at);
CREATE INDEX synergon_history_unsuccessful ON synergon_history (state, id) WHERE state <> 'succeeded';
CREATE INDEX synergon_history_kept ON synergon_history (keep_for, finished_at) WHERE keep_for IS NOT NULL;
CREATE INDEX synergon_history_group ON synergon_history (group_id, state) WHERE group_id IS NOT NULL;
CREATE INDEX synergon_history_parent ON synergon_history (parent_id) WHERE parent_id IS NOT NULL;

-- The numbers of final tasks. The transaction that ends or deletes tasks updates them, so counting is cheap.
CREATE TABLE synergon_tally (
    queue TEXT    NOT NULL,
    kind  TEXT    NOT NULL,
    state TEXT    NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (queue, kind, state)
) STRICT, WITHOUT ROWID;

-- One row: the numbers of live tasks when they were counted last, as JSON: queue, kind, state, number. Used only if
-- there are many live tasks.
CREATE TABLE synergon_live_count (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    counted_at INTEGER NOT NULL,
    numbers    BLOB    NOT NULL
) STRICT;

CREATE TABLE synergon_queue (
    name      TEXT PRIMARY KEY,
    paused_at INTEGER
) STRICT, WITHOUT ROWID;

-- Limits. `declared` is the last declaration as JSON; an equal declaration changes nothing.
CREATE TABLE synergon_limit (
    name     TEXT PRIMARY KEY,
    declared TEXT    NOT NULL,
    value    INTEGER CHECK (value >= 0),
    per      INTEGER CHECK (per > 0), -- a rate: `starts` starts in `per` microseconds
    starts   INTEGER CHECK (starts > 0),
    burst    INTEGER CHECK (burst > 0),
    by_units INTEGER CHECK (by_units IN (0, 1)),
    next_at  INTEGER, -- as in `synergon_rate`; limits of key queues do not use it
    batch_size INTEGER CHECK (batch_size > 0),
    batch_wait INTEGER CHECK (batch_wait >= 0),
    CHECK ((per IS NULL) = (burst IS NULL) AND (per IS NULL) = (starts IS NULL)),
    CHECK ((batch_size IS NULL) = (batch_wait IS NULL))
) STRICT, WITHOUT ROWID;

-- Rates of key queues: `next_at` is the moment from which the next start is within the rate. A row with a moment in the
-- past has no effect.
CREATE TABLE synergon_rate (
    kind      TEXT    NOT NULL,
    limit_key TEXT    NOT NULL,
    next_at   INTEGER NOT NULL,
    PRIMARY KEY (kind, limit_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_rate_age ON synergon_rate (next_at);

-- Alarms: when the next batch of a key queue is due, even if it is not complete.
CREATE TABLE synergon_batch_alarm (
    kind      TEXT    NOT NULL,
    limit_key TEXT    NOT NULL,
    due_at    INTEGER NOT NULL,
    PRIMARY KEY (kind, limit_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_batch_alarm_due ON synergon_batch_alarm (due_at);

-- Holds of unique keys: the key stays taken until the moment, also if the task has ended or was pruned. A row with a
-- moment in the past has no effect.
CREATE TABLE synergon_key_hold (
    kind    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    task_id INTEGER NOT NULL, -- the task that has taken the key
    until   INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_key_hold_age ON synergon_key_hold (until);
CREATE INDEX synergon_key_hold_task ON synergon_key_hold (task_id);

CREATE TABLE synergon_provider (
    name       TEXT PRIMARY KEY,
    declared   TEXT    NOT NULL,
    backoff_after INTEGER CHECK (backoff_after > 0),
    backoff_first INTEGER NOT NULL CHECK (backoff_first >= 0),
    backoff_cap   INTEGER NOT NULL CHECK (backoff_cap >= 0),
    failure_most   INTEGER CHECK (failure_most > 0),
    failure_window INTEGER NOT NULL CHECK (failure_window BETWEEN 1 AND 62),
    probe_timeout  INTEGER CHECK (probe_timeout >= 0) -- only if the provider has a probe
) STRICT, WITHOUT ROWID;

CREATE TABLE synergon_server (
    provider      TEXT    NOT NULL,
    address       TEXT    NOT NULL,
    capacity      INTEGER CHECK (capacity >= 0),
    failures      INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0), -- failures in a row
    recent        INTEGER NOT NULL DEFAULT 0 CHECK (recent >= 0), -- the last outcomes as bits: 1 is a failure
    backoffs         INTEGER NOT NULL DEFAULT 0 CHECK (backoffs >= 0),    -- back-offs since `recent` was 0
    backs_off_until INTEGER,
    failed_at       INTEGER, -- the last failure
    PRIMARY KEY (provider, address)
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_server_backoff ON synergon_server (backs_off_until) WHERE backs_off_until IS NOT NULL;

CREATE TABLE synergon_group (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    then_id    INTEGER,  -- the task that follows a group; the last step of a flow
    is_flow    INTEGER NOT NULL CHECK (is_flow IN (0, 1)),
    state      TEXT CHECK (state = 'succeeded' OR state = 'failed' OR state = 'cancelled'),
    CHECK ((ended_at IS NULL) = (state IS NULL))
) STRICT;
CREATE INDEX synergon_group_age ON synergon_group (state, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX synergon_group_flow ON synergon_group (id) WHERE is_flow = 1;

-- Dependencies between tasks. A task with an open dependency (`ended_as` is NULL) waits.
CREATE TABLE synergon_dependency (
    task_id  INTEGER NOT NULL, -- the dependent
    needs_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    item     INTEGER,          -- the index of an item that a map has created
    if_fails TEXT    NOT NULL CHECK (if_fails = 'cancel' OR if_fails = 'run' OR if_fails = 'group'),
    ended_as TEXT CHECK (ended_as = 'succeeded' OR ended_as = 'failed' OR ended_as = 'cancelled' OR ended_as = 'deleted'),
    PRIMARY KEY (task_id, needs_id, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_dependency_needed ON synergon_dependency (needs_id);
CREATE INDEX synergon_dependency_open ON synergon_dependency (task_id) WHERE ended_as IS NULL;

-- Schedules. `next_at` is the nominal moment of the next occurrence, and the guard of every firing; `due_at` is that
-- moment with its jitter. If both are NULL, the schedule has ended.
CREATE TABLE synergon_schedule (
    name          TEXT    PRIMARY KEY,
    definition    BLOB    NOT NULL, -- what to insert and when, as JSON
    is_declared   INTEGER NOT NULL CHECK (is_declared IN (0, 1)), -- whether code declares it
    anchor        INTEGER NOT NULL, -- where the grid of an interval starts
    created_at    INTEGER NOT NULL,
    next_at       INTEGER,
    due_at        INTEGER,
    paused_at     INTEGER,
    last_task_id  INTEGER,
    last_at       INTEGER, -- the last occurrence that inserted a task
    fired         INTEGER NOT NULL CHECK (fired >= 0),
    missed        INTEGER NOT NULL CHECK (missed >= 0),
    skipped       INTEGER NOT NULL CHECK (skipped >= 0),
    skips_in_row  INTEGER NOT NULL CHECK (skips_in_row >= 0),
    skipped_since INTEGER,
    reason        TEXT,    -- the latest reason why an occurrence inserted no task
    reason_at     INTEGER,
    past          BLOB    NOT NULL, -- the latest occurrences, as JSON
    CHECK ((next_at IS NULL) = (due_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_schedule_due ON synergon_schedule (due_at, name) WHERE due_at IS NOT NULL;

-- The audit of operator actions. `node_id` is the node that carries out the action. If it is NULL, the store has
-- carried it out.
CREATE TABLE synergon_order (
    id         INTEGER PRIMARY KEY,
    verb       TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    value      BLOB,
    who        TEXT    NOT NULL,
    node_name  TEXT,
    node_id    TEXT,
    requested_at INTEGER NOT NULL,
    done_at    INTEGER,
    outcome    TEXT,
    CHECK ((done_at IS NULL) = (outcome IS NULL)),
    CHECK (done_at IS NOT NULL OR node_id IS NOT NULL)
) STRICT;
CREATE INDEX synergon_order_open ON synergon_order (node_id, id) WHERE done_at IS NULL;

CREATE TABLE synergon_node (
    id            TEXT PRIMARY KEY,
    name          TEXT    NOT NULL,
    process       BLOB    NOT NULL,
    boot_id       TEXT    NOT NULL,
    kinds         BLOB    NOT NULL,
    queues        BLOB,
    concurrency   INTEGER NOT NULL,
    version       TEXT    NOT NULL,
    address       TEXT,
    registered_at INTEGER NOT NULL,
    -- In microseconds of the host's monotonic clock, so that a step of the wall clock ends no lease.
    leased_until  INTEGER NOT NULL,
    lease         INTEGER NOT NULL,
    cordoned_at   INTEGER, -- cordoned: it may claim nothing
    published     BLOB    NOT NULL, -- the status of the node
    published_at  INTEGER NOT NULL  -- by the clock of leases
) STRICT, WITHOUT ROWID;

-- The names of nodes that are gone, for the tasks that ran there.
CREATE TABLE synergon_past_node (
    id      TEXT PRIMARY KEY,
    name    TEXT    NOT NULL,
    process BLOB    NOT NULL,
    gone_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_past_node_age ON synergon_past_node (gone_at);

-- One row: how long final tasks and statistics remain, in microseconds; NULL means for ever. `declared` is the last
-- declaration of a worker as JSON; an equal declaration changes nothing.
CREATE TABLE synergon_retention (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    succeeded   INTEGER CHECK (succeeded BETWEEN 0 AND 3162240000000000),
    failed      INTEGER CHECK (failed BETWEEN 0 AND 3162240000000000),
    cancelled   INTEGER CHECK (cancelled BETWEEN 0 AND 3162240000000000),
    statistics  INTEGER CHECK (statistics BETWEEN 0 AND 3162240000000000),
    declared    TEXT    NOT NULL,
    declared_by TEXT    NOT NULL
) STRICT;

-- What engines and workers have counted for each kind and queue, as JSON, in the `span` seconds from `at` on
-- (microseconds since 1970). An engine (`source`) writes minutes; merged rows have no source.
CREATE TABLE synergon_statistics (
    span    INTEGER NOT NULL CHECK (span IN (60, 3600, 86400)),
    at      INTEGER NOT NULL CHECK (at BETWEEN 0 AND 253402300799999999),
    kind    TEXT    NOT NULL,
    queue   TEXT    NOT NULL,
    source  TEXT    NOT NULL,
    numbers TEXT    NOT NULL,
    PRIMARY KEY (span, at, kind, queue, source)
) STRICT, WITHOUT ROWID;

-- How far the history of each state and kind is pruned: when the last pruned task had ended.
CREATE TABLE synergon_pruned (
    state  TEXT    NOT NULL,
    kind   TEXT    NOT NULL,
    moment INTEGER NOT NULL,
    PRIMARY KEY (state, kind)
) STRICT, WITHOUT ROWID;

-- One row: the last id that was assigned, and the latest moment that was written, by the store's clock (`clock`) and by
-- the host's monotonic clock (`steady`).
CREATE TABLE synergon_sequence (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    last_id INTEGER NOT NULL CHECK (last_id BETWEEN 0 AND 4611686018427387904),
    clock   INTEGER NOT NULL CHECK (clock BETWEEN 0 AND 253402300799999999),
    steady  INTEGER NOT NULL CHECK (steady >= 0),
    boot_id TEXT    NOT NULL
) STRICT;
INSERT INTO synergon_sequence (one, last_id, clock, steady, boot_id) VALUES (1, 0, 0, 0, '');
