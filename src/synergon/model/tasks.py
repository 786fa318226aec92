"""Records of tasks that enter or change in a store: new tasks, insertions, changes, operations."""

from __future__ import annotations

from typing import Literal

import msgspec

from synergon.model.lifecycle import State
from synergon.model.record import Record
from synergon.model.requirements import KIND_DEFAULT

OnConflict = Literal["return", "raise", "replace"]


class NewTask(Record, frozen=True, kw_only=True):
    """A task that is not stored yet."""

    kind: str
    queue: str = "default"
    payload: bytes = b"{}"
    priority: int = 0
    run_at: int | None = None
    """Due at this moment; None means now, or `delay` after now."""
    delay: int | None = None
    """Microseconds after the store's now."""
    expires_in: int | None = None
    """Microseconds after the store's now; not started by then, it ends `failed` with reason `expired`."""
    max_attempts: int | None = None
    """None if the producer does not know the kind; the node that runs the task does."""
    overrides: bytes | None = None
    """Options of the call that override those of its kind (`timeout`, `retry`, `runs_in`), as JSON."""
    key: str | None = None
    on_conflict: OnConflict = "return"
    tags: tuple[str, ...] = ()
    meta: bytes | None = None
    """A JSON object."""
    title: str | None = None
    """What the task is about, for people."""
    origin: str | None = None
    """The engine that is notified when the task has ended."""
    limit_key: str | None = None
    """The key queue of the task. A limited number of its tasks are `ready` or `running` at once, and the others are
    `waiting`."""
    group_id: int | None = None
    """The group that the task belongs to."""
    after_group: int | None = None
    """The task is `waiting` until this group has ended."""
    is_command: bool = False
    """A command precedes every task, and is never run again after it has started."""
    provider: str | None = None
    """The provider of a command, by which commands for a removed server are found."""
    target: str | None = None
    """The only server that may run the task."""
    requirements: str = KIND_DEFAULT
    """The text of its requirements (`requirements.Requirements`)."""


class Insertion(msgspec.Struct, frozen=True):
    """The result of inserting a NewTask: the id of the new task, or of the live task that held its key."""

    id: int
    created: bool
    """False if a live task held the key: `id` is that task, perhaps replaced."""
    state: State


class Woken(Record, frozen=True, kw_only=True):
    """The result of `Store.wake`."""

    kinds: dict[str, int]
    """How many tasks of each kind became ready."""
    expired: tuple[int, ...] = ()
    """Tasks that ended because they were not started in time."""
    next_in: int | None = None
    """Microseconds until the next task is due or expires; None if there is none."""


class Moved(Record, frozen=True, kw_only=True):
    """The result of an operation on one task, with its current state; None if there is no such task."""

    id: int
    done: bool
    """Whether the operation took effect (for a running task that is cancelled: was recorded)."""
    state: State | None
    kind: str | None = None
    node_id: str | None = None
    """The node that runs the task, if a running task is cancelled."""
    key_holder: int | None = None
    """The live task that holds the unique key, if a retry was rejected because of it."""
    group_id: int | None = None
    """The group of a task that was ended or deleted."""


class Reaped(Record, frozen=True, kw_only=True):
    """A task that was taken from a dead node."""

    id: int
    kind: str
    node_id: str
    state: State
    owner_deaths: int
    released: tuple[str, ...] = ()
    """The kinds of other tasks that became ready with this call, because groups have ended or key queues were
    balanced. The last entry lists them all."""


class Rescheduling(Record, frozen=True, kw_only=True):
    """The new due time of a task: at `run_at`, or `delay` microseconds after the store's now."""

    id: int
    run_at: int | None = None
    delay: int | None = None


class Reprioritizing(Record, frozen=True, kw_only=True):
    """The new priority of a task."""

    id: int
    priority: int


class Cutoffs(Record, frozen=True, kw_only=True):
    """Ages in microseconds after which final tasks and operator actions are deleted; None keeps them."""

    succeeded: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    audit: int | None = None
