-- Live tasks. A task is in exactly one of the two tables below: its state and its due time stand in its one row.
CREATE TABLE synergon_task (
    id               INTEGER PRIMARY KEY,
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    state            TEXT    NOT NULL CHECK (state IN ('waiting', 'scheduled', 'ready', 'running')),
    priority         INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    payload          BLOB    NOT NULL,
    attempts         INTEGER NOT NULL DEFAULT 0,
    max_attempts     INTEGER,
    crashes          INTEGER NOT NULL DEFAULT 0,
    claim_no         INTEGER NOT NULL DEFAULT 0,
    settled_no       INTEGER, -- the last claim whose owner settled it
    node_id          TEXT,
    server           TEXT,
    key              TEXT,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    overdue          INTEGER NOT NULL DEFAULT 0,
    enqueued_at      INTEGER NOT NULL,
    started_at       INTEGER,
    expires_at       INTEGER,
    overrides        BLOB,
    tags             TEXT,
    meta             BLOB,
    progress         BLOB,
    errors           BLOB,
    origin           TEXT, -- the engine that is told of the end
    CHECK ((state = 'running') = (node_id IS NOT NULL))
);
CREATE INDEX synergon_task_ready ON synergon_task (kind, queue, priority DESC, id) WHERE state = 'ready';
CREATE INDEX synergon_task_due ON synergon_task (run_at, kind, queue) WHERE state = 'scheduled';
CREATE INDEX synergon_task_running ON synergon_task (node_id) WHERE state = 'running';
CREATE INDEX synergon_task_expiry ON synergon_task (expires_at) WHERE expires_at IS NOT NULL AND state <> 'running';
CREATE UNIQUE INDEX synergon_task_key ON synergon_task (kind, key) WHERE key IS NOT NULL;

-- Ended tasks.
CREATE TABLE synergon_history (
    id               INTEGER PRIMARY KEY,
    kind             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    state            TEXT    NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled')),
    reason           TEXT    CHECK ((state = 'succeeded') = (reason IS NULL)),
    priority         INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    payload          BLOB    NOT NULL,
    result           BLOB,
    attempts         INTEGER NOT NULL,
    max_attempts     INTEGER,
    crashes          INTEGER NOT NULL,
    claim_no         INTEGER NOT NULL,
    settled_no       INTEGER,
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
    progress         BLOB,
    errors           BLOB
);
CREATE INDEX synergon_history_age ON synergon_history (state, finished_at);
CREATE INDEX synergon_history_unsuccessful ON synergon_history (state, id) WHERE state <> 'succeeded';

-- How many ended tasks there are: written in the transaction that ends or forgets them, so that counting is cheap.
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
    lease         INTEGER NOT NULL
) WITHOUT ROWID;

-- One row: the last id that was given, and the latest moment that was written, by the host's clock and by the one that
-- counts from its boot.
CREATE TABLE synergon_sequence (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    last_id INTEGER NOT NULL,
    clock   INTEGER NOT NULL,
    steady  INTEGER NOT NULL,
    boot_id TEXT    NOT NULL
);
INSERT INTO synergon_sequence (one, last_id, clock, steady, boot_id) VALUES (1, 0, 0, 0, '');
