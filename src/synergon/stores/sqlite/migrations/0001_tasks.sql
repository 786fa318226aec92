-- STRICT tables refuse values of a wrong type, whichever program writes them.

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
    after_group      INTEGER, -- the group whose end it waits for
    is_command       INTEGER NOT NULL DEFAULT 0 CHECK (is_command IN (0, 1)),
    target           TEXT,    -- the only server that may run it
    provider         TEXT,
    server           TEXT,    -- the server of its last attempt
    slot             INTEGER,
    holds            TEXT,    -- the names of the limits whose permits it holds, one per line
    payload          BLOB    NOT NULL,
    attempts         INTEGER NOT NULL DEFAULT 0,
    max_attempts     INTEGER,
    crashes          INTEGER NOT NULL DEFAULT 0,
    owner_deaths     INTEGER NOT NULL DEFAULT 0, -- nodes that died while they ran it, since an attempt ended
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
    progress         BLOB,
    errors           BLOB,
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
    CHECK (after_group IS NULL OR state = 'waiting'),
    CHECK (state <> 'waiting' OR limit_key IS NOT NULL OR after_group IS NOT NULL)
) STRICT;
-- Ready groups are contiguous in this index: a group that a node cannot run is skipped in one step.
CREATE INDEX synergon_task_ready ON synergon_task (kind, queue, requirements, priority DESC, id) WHERE state = 'ready';
CREATE INDEX synergon_task_due ON synergon_task (run_at, kind, queue) WHERE state = 'scheduled';
CREATE INDEX synergon_task_running ON synergon_task (node_id) WHERE state = 'running';
CREATE INDEX synergon_task_expiry ON synergon_task (expires_at) WHERE expires_at IS NOT NULL AND state <> 'running';
CREATE UNIQUE INDEX synergon_task_key ON synergon_task (kind, key) WHERE key IS NOT NULL;
-- The first index contains all columns that balancing key queues needs, so that no rows are read. Its column `state`
-- precedes the key, so that the few ready or running tasks share pages. The second finds when the next task of a key
-- queue becomes due.
CREATE INDEX synergon_task_key_queue ON synergon_task (kind, state, limit_key, priority DESC, id, queue, after_group)
    WHERE limit_key IS NOT NULL AND after_group IS NULL;
CREATE INDEX synergon_task_deferred ON synergon_task (kind, limit_key, run_at)
    WHERE limit_key IS NOT NULL AND state = 'scheduled';
-- The permits of running tasks, with all columns that are read. No two tasks have the same slot of a server.
CREATE INDEX synergon_task_holding ON synergon_task (holds, provider, server, slot) WHERE holds IS NOT NULL;
CREATE UNIQUE INDEX synergon_task_server_slot ON synergon_task (provider, server, slot) WHERE slot IS NOT NULL;
CREATE INDEX synergon_task_command ON synergon_task (provider, target) WHERE is_command = 1;
CREATE INDEX synergon_task_target ON synergon_task (kind, target, id) WHERE is_command = 1 AND state = 'ready';
CREATE INDEX synergon_task_group ON synergon_task (group_id, state) WHERE group_id IS NOT NULL;
CREATE INDEX synergon_task_after ON synergon_task (after_group, kind, queue) WHERE after_group IS NOT NULL;

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
    is_command       INTEGER NOT NULL CHECK (is_command IN (0, 1)),
    target           TEXT,
    provider         TEXT,
    payload          BLOB    NOT NULL,
    result           BLOB,
    attempts         INTEGER NOT NULL,
    max_attempts     INTEGER,
    crashes          INTEGER NOT NULL,
    owner_deaths     INTEGER NOT NULL,
    claim_no         INTEGER NOT NULL,
    finished_no       INTEGER,
    node_id          TEXT,
    server           TEXT,
    key              TEXT,
    cancel_requested INTEGER NOT NULL,
    overdue          INTEGER NOT NULL,
    enqueued_at      INTEGER NOT NULL,
    started_at       INTEGER,
    -- The order of final events: no reader may find an end that it can never pass.
    finished_at      INTEGER NOT NULL CHECK (finished_at BETWEEN 0 AND 253402300799999999),
    expires_at       INTEGER,
    overrides        BLOB,
    tags             TEXT,
    meta             BLOB,
    title            TEXT,
    progress         BLOB,
    errors           BLOB,
    requirements           TEXT    NOT NULL
) STRICT;
CREATE INDEX synergon_history_age ON synergon_history (state, finished_at);
CREATE INDEX synergon_history_unsuccessful ON synergon_history (state, id) WHERE state <> 'succeeded';
CREATE INDEX synergon_history_group ON synergon_history (group_id, state) WHERE group_id IS NOT NULL;

-- The numbers of final tasks. The transaction that ends or deletes tasks updates them, so counting is cheap.
CREATE TABLE synergon_tally (
    queue TEXT    NOT NULL,
    kind  TEXT    NOT NULL,
    state TEXT    NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (queue, kind, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE synergon_queue (
    name      TEXT PRIMARY KEY,
    paused_at INTEGER
) STRICT, WITHOUT ROWID;

-- Limits. `declared` is the last declaration as JSON; declaring the same again changes nothing.
CREATE TABLE synergon_limit (
    name     TEXT PRIMARY KEY,
    declared TEXT    NOT NULL,
    value    INTEGER CHECK (value >= 0),
    every    INTEGER CHECK (every > 0),
    burst    INTEGER CHECK (burst > 0),
    CHECK ((every IS NULL) = (burst IS NULL))
) STRICT, WITHOUT ROWID;

-- Rates of key queues: `next_at` is the moment from which the next start is within the rate. A moment in the past means
-- the same as no row.
CREATE TABLE synergon_rate (
    kind      TEXT    NOT NULL,
    limit_key TEXT    NOT NULL,
    next_at   INTEGER NOT NULL,
    PRIMARY KEY (kind, limit_key)
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_rate_age ON synergon_rate (next_at);

CREATE TABLE synergon_provider (
    name       TEXT PRIMARY KEY,
    declared   TEXT    NOT NULL,
    backoff_after INTEGER CHECK (backoff_after > 0),
    backoff_first INTEGER NOT NULL CHECK (backoff_first >= 0),
    backoff_cap   INTEGER NOT NULL CHECK (backoff_cap >= 0)
) STRICT, WITHOUT ROWID;

CREATE TABLE synergon_server (
    provider      TEXT    NOT NULL,
    address       TEXT    NOT NULL,
    capacity      INTEGER CHECK (capacity >= 0),
    failures      INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0), -- failures in a row
    backoffs         INTEGER NOT NULL DEFAULT 0 CHECK (backoffs >= 0),    -- back-offs since the last success
    backs_off_until INTEGER,
    PRIMARY KEY (provider, address)
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_server_backoff ON synergon_server (backs_off_until) WHERE backs_off_until IS NOT NULL;

CREATE TABLE synergon_group (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    then_id    INTEGER
) STRICT;
CREATE INDEX synergon_group_age ON synergon_group (ended_at) WHERE ended_at IS NOT NULL;

-- Schedules. `next_at` is the nominal moment of the next occurrence, and the guard of every firing; `due_at` is that moment
-- with its jitter. Without them the schedule has ended.
CREATE TABLE synergon_schedule (
    name          TEXT    PRIMARY KEY,
    definition    BLOB    NOT NULL, -- what to insert and when, as JSON
    is_declared   INTEGER NOT NULL CHECK (is_declared IN (0, 1)), -- in code
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
    reason        TEXT,    -- why the last occurrence that inserted nothing did so
    reason_at     INTEGER,
    CHECK ((next_at IS NULL) = (due_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX synergon_schedule_due ON synergon_schedule (due_at, name) WHERE due_at IS NOT NULL;

-- The audit of operator actions. `node_id`: the node that carries the action out; the store carries out all others.
CREATE TABLE synergon_order (
    id         INTEGER PRIMARY KEY,
    verb       TEXT    NOT NULL,
    subject    TEXT    NOT NULL,
    value      BLOB,
    who        TEXT    NOT NULL,
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
    -- In microseconds of the host's monotonic clock. A step of the wall clock ends no lease.
    leased_until  INTEGER NOT NULL,
    lease         INTEGER NOT NULL,
    cordoned_at   INTEGER, -- cordoned: it may claim nothing
    published     BLOB    NOT NULL, -- the status of the node
    published_at  INTEGER NOT NULL  -- by the clock of leases
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
