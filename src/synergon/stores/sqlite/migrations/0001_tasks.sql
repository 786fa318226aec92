-- Live tasks. A task is in exactly one of the two tables of tasks; its row contains its state and its due time.
CREATE TABLE synergon_task (
    id               INTEGER PRIMARY KEY,
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    -- Without IN: SQLite builds a temporary table for such a list in every statement that writes a row.
    state            TEXT    NOT NULL
        CHECK (state = 'ready' OR state = 'running' OR state = 'scheduled' OR state = 'waiting'),
    priority         INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    limit_key        TEXT,    -- its key queue
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
    title            TEXT,    -- what it is about, for people
    progress         BLOB,
    errors           BLOB,
    origin           TEXT, -- the engine that gets its result
    requirements           TEXT    NOT NULL DEFAULT '', -- empty: those of its kind, on the node that claims it
    reserved_by          TEXT,    -- the node that reserves capacity for it
    reserved_until       INTEGER,
    protected_until     INTEGER, -- no preemption before this moment
    CHECK ((state = 'running') = (node_id IS NOT NULL)),
    CHECK ((reserved_by IS NULL) = (reserved_until IS NULL)),
    CHECK (reserved_by IS NULL OR state = 'ready'),
    CHECK (state = 'running' OR (holds IS NULL AND slot IS NULL)),
    CHECK (slot IS NULL OR (provider IS NOT NULL AND server IS NOT NULL AND holds IS NOT NULL)),
    CHECK (after_group IS NULL OR state = 'waiting'),
    CHECK (state <> 'waiting' OR limit_key IS NOT NULL OR after_group IS NOT NULL)
);
-- Ready groups are contiguous in this index: a group that a node cannot run is skipped in one step.
CREATE INDEX synergon_task_ready ON synergon_task (kind, queue, requirements, priority DESC, id) WHERE state = 'ready';
CREATE INDEX synergon_task_due ON synergon_task (run_at, kind, queue) WHERE state = 'scheduled';
CREATE INDEX synergon_task_running ON synergon_task (node_id) WHERE state = 'running';
CREATE INDEX synergon_task_expiry ON synergon_task (expires_at) WHERE expires_at IS NOT NULL AND state <> 'running';
CREATE UNIQUE INDEX synergon_task_key ON synergon_task (kind, key) WHERE key IS NOT NULL;
-- Key queues, with all columns that balancing them needs, so that no rows are read; and the moments at which a task of one
-- becomes due. The state precedes the key, so that the few ready or running tasks share pages.
CREATE INDEX synergon_task_key_queue ON synergon_task (kind, state, limit_key, priority DESC, id, queue, after_group)
    WHERE limit_key IS NOT NULL AND after_group IS NULL;
CREATE INDEX synergon_task_deferred ON synergon_task (kind, limit_key, run_at)
    WHERE limit_key IS NOT NULL AND state = 'scheduled';
-- The permits of running tasks, read without their rows; no two tasks have one slot of a server.
CREATE INDEX synergon_task_holding ON synergon_task (holds, provider, server, slot) WHERE holds IS NOT NULL;
CREATE UNIQUE INDEX synergon_task_server_slot ON synergon_task (provider, server, slot) WHERE slot IS NOT NULL;
CREATE INDEX synergon_task_command ON synergon_task (provider, target) WHERE is_command = 1;
CREATE INDEX synergon_task_target ON synergon_task (kind, target, id) WHERE is_command = 1 AND state = 'ready';
CREATE INDEX synergon_task_group ON synergon_task (group_id, state) WHERE group_id IS NOT NULL;
CREATE INDEX synergon_task_after ON synergon_task (after_group, kind, queue) WHERE after_group IS NOT NULL;

-- The history: final tasks.
CREATE TABLE synergon_history (
    id               INTEGER PRIMARY KEY,
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    state            TEXT    NOT NULL CHECK (state = 'succeeded' OR state = 'failed' OR state = 'cancelled'),
    reason           TEXT    CHECK ((state = 'succeeded') = (reason IS NULL)),
    priority         INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    limit_key        TEXT,
    group_id         INTEGER,
    is_command       INTEGER NOT NULL,
    target           TEXT,
    provider         TEXT,
    payload          BLOB    NOT NULL,
    result           BLOB,
    attempts         INTEGER NOT NULL,
    max_attempts     INTEGER,
    crashes          INTEGER NOT NULL,
    claim_no         INTEGER NOT NULL,
    finished_no       INTEGER,
    node_id          TEXT,
    server           TEXT,
    key              TEXT,
    cancel_requested INTEGER NOT NULL,
    overdue          INTEGER NOT NULL,
    enqueued_at      INTEGER NOT NULL,
    started_at       INTEGER,
    finished_at      INTEGER NOT NULL,
    expires_at       INTEGER,
    overrides        BLOB,
    tags             TEXT,
    meta             BLOB,
    title            TEXT,
    progress         BLOB,
    errors           BLOB,
    requirements           TEXT    NOT NULL
);
CREATE INDEX synergon_history_age ON synergon_history (state, finished_at);
CREATE INDEX synergon_history_unsuccessful ON synergon_history (state, id) WHERE state <> 'succeeded';
CREATE INDEX synergon_history_group ON synergon_history (group_id, state) WHERE group_id IS NOT NULL;

-- The numbers of final tasks, updated in the transaction that ends or deletes them, so that counting is cheap.
CREATE TABLE synergon_tally (
    queue TEXT    NOT NULL,
    kind  TEXT    NOT NULL,
    state TEXT    NOT NULL,
    count INTEGER NOT NULL CHECK (count >= 0),
    PRIMARY KEY (queue, kind, state)
) WITHOUT ROWID;

CREATE TABLE synergon_queue (
    name      TEXT PRIMARY KEY,
    paused_at INTEGER
) WITHOUT ROWID;

-- Limits, with their last declaration as JSON: a declaration that equals it changes nothing.
CREATE TABLE synergon_limit (
    name     TEXT PRIMARY KEY,
    declared TEXT    NOT NULL,
    value    INTEGER CHECK (value >= 0),
    every    INTEGER CHECK (every > 0),
    burst    INTEGER CHECK (burst > 0),
    CHECK ((every IS NULL) = (burst IS NULL))
) WITHOUT ROWID;

-- Rates of key queues: when the next start is on time. A moment in the past is equivalent to no row.
CREATE TABLE synergon_rate (
    kind      TEXT    NOT NULL,
    limit_key TEXT    NOT NULL,
    next_at   INTEGER NOT NULL,
    PRIMARY KEY (kind, limit_key)
) WITHOUT ROWID;
CREATE INDEX synergon_rate_age ON synergon_rate (next_at);

CREATE TABLE synergon_provider (
    name       TEXT PRIMARY KEY,
    declared   TEXT    NOT NULL,
    backoff_after INTEGER CHECK (backoff_after > 0),
    backoff_first INTEGER NOT NULL CHECK (backoff_first >= 0),
    backoff_cap   INTEGER NOT NULL CHECK (backoff_cap >= 0)
) WITHOUT ROWID;

CREATE TABLE synergon_server (
    provider      TEXT    NOT NULL,
    address       TEXT    NOT NULL,
    capacity      INTEGER CHECK (capacity >= 0),
    failures      INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0), -- failures in a row
    backoffs         INTEGER NOT NULL DEFAULT 0 CHECK (backoffs >= 0),    -- back-offs since the last success
    backs_off_until INTEGER,
    PRIMARY KEY (provider, address)
) WITHOUT ROWID;
CREATE INDEX synergon_server_backoff ON synergon_server (backs_off_until) WHERE backs_off_until IS NOT NULL;

CREATE TABLE synergon_group (
    id         INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER,
    then_id    INTEGER
);
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
) WITHOUT ROWID;
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
);
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
    -- Microseconds of the host's monotonic clock since its boot: a wall clock that steps expires no lease.
    leased_until  INTEGER NOT NULL,
    lease         INTEGER NOT NULL,
    cordoned_at   INTEGER, -- cordoned: it may claim nothing
    is_stopping   INTEGER NOT NULL DEFAULT 0, -- it stops: its death charges its tasks no crash
    published     BLOB    NOT NULL, -- the status of the node
    published_at  INTEGER NOT NULL  -- by the clock of leases
) WITHOUT ROWID;

-- How far final tasks of each kind were pruned: when the last of them had ended.
CREATE TABLE synergon_pruned (
    state  TEXT    NOT NULL,
    kind   TEXT    NOT NULL,
    moment INTEGER NOT NULL,
    PRIMARY KEY (state, kind)
) WITHOUT ROWID;

-- One row: the last id that was assigned, and the latest moment that was written, by the host's wall clock and by its
-- monotonic clock.
CREATE TABLE synergon_sequence (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    last_id INTEGER NOT NULL,
    clock   INTEGER NOT NULL,
    steady  INTEGER NOT NULL,
    boot_id TEXT    NOT NULL
);
INSERT INTO synergon_sequence (one, last_id, clock, steady, boot_id) VALUES (1, 0, 0, 0, '');
