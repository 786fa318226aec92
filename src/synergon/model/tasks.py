"""Records of tasks that enter or change in a store: new tasks, insertions, changes, operations."""

from __future__ import annotations

from typing import Any, Literal

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
    """The moment at which the task is due. None means `delay` from now, or now."""
    delay: int | None = None
    """The task is due this many microseconds after the store's present time."""
    expires_in: int | None = None
    """The task expires this many microseconds after the store's present time: if it has not started by then, it ends
    `failed` with reason `expired`."""
    max_attempts: int | None = None
    """The maximum number of attempts. None if the producer does not know the kind; then the policy of the node that
    runs the task decides."""
    overrides: bytes | None = None
    """Options of the call that override those of the kind (`timeout`, `retry`, `runs_in`), as JSON."""
    key: str | None = None
    on_conflict: OnConflict = "return"
    tags: tuple[str, ...] = ()
    meta: bytes | None = None
    """A JSON object."""
    title: str | None = None
    """A short text for people that says what the task is about."""
    origin: str | None = None
    """The engine that is notified of the end of the task."""
    limit_key: str | None = None
    """The key of the task's key queue. Only a limited number of tasks of a key queue are `ready` or `running` at once;
    the others are `waiting`."""
    group_id: int | None = None
    """The group that the task belongs to."""
    after_group: int | None = None
    """The task is `waiting` until this group has ended."""
    is_command: bool = False
    """Whether the task is a command: it precedes every task, and is never run again after it has started."""
    provider: str | None = None
    """The provider of a command. Used to find the commands for a removed server."""
    target: str | None = None
    """The only server that may run the task."""
    requirements: str = KIND_DEFAULT
    """The requirements of the task, as text (`requirements.Requirements`)."""


class Insertion(msgspec.Struct, frozen=True):
    """The result of inserting a NewTask: the new task, or the live task that held its key."""

    id: int
    created: bool
    """Whether a new row was inserted. False if a live task held the key: `id` is that task, perhaps replaced."""
    state: State


class Woken(Record, frozen=True, kw_only=True):
    """The result of `Store.wake`."""

    kinds: dict[str, int]
    """How many tasks of each kind became ready."""
    expired: tuple[int, ...] = ()
    """Tasks that ended because they were not started in time."""
    next_in: int | None = None
    """Microseconds until the next task is due or expires, or a server's back-off ends. None if there is no such
    moment."""


class Moved(Record, frozen=True, kw_only=True):
    """The result of an operation on one task. `state` is the task's state after it, or None if the task does not exist
    (any more)."""

    id: int
    done: bool
    """Whether the operation took effect. For the cancellation of a running task: whether it was requested."""
    state: State | None
    kind: str | None = None
    node_id: str | None = None
    """The node that runs the task, if the operation concerned a running task."""
    key_holder: int | None = None
    """The live task that holds the unique key, if a retry failed because of it."""
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
    """The kinds of other tasks that became ready in this call, because groups ended or key queues were balanced. Only
    the last entry of a call has them."""


class Rescheduling(Record, frozen=True, kw_only=True):
    """A new due time for a task: at `run_at`, or `delay` microseconds after the store's present time."""

    id: int
    run_at: int | None = None
    delay: int | None = None


class Reprioritizing(Record, frozen=True, kw_only=True):
    """A new priority for a task."""

    id: int
    priority: int


class MetaChange(Record, frozen=True, kw_only=True):
    """New values in the metadata of a task, by name. None removes the name."""

    id: int
    values: dict[str, Any]


class Extension(Record, frozen=True, kw_only=True):
    """More time for the running attempt of a task, in microseconds."""

    id: int
    extra: int


class Cutoffs(Record, frozen=True, kw_only=True):
    """The ages in microseconds after which final tasks and operator actions are deleted. None means never."""

    succeeded: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    audit: int | None = None
