"""Tasks on their way into and through a store: new tasks, moves, operations."""

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
    """Due at this moment; None: now, or `delay` after now."""
    delay: int | None = None
    """Microseconds after the store's now."""
    expires_in: int | None = None
    """Microseconds after the store's now; not started by then, it ends `failed` with reason `expired`."""
    max_attempts: int | None = None
    """None: the producer does not know the kind; the node that runs it does."""
    overrides: bytes | None = None
    """JSON of what this call says otherwise than its kind (`timeout`, `retry`, `runs_in`)."""
    key: str | None = None
    on_conflict: OnConflict = "return"
    tags: tuple[str, ...] = ()
    meta: bytes | None = None
    """JSON object."""
    title: str | None = None
    """What it is about, for people."""
    origin: str | None = None
    """The engine that is told when the task has ended."""
    limit_key: str | None = None
    """The line of its kind that it stands in: of each line only so many are `ready` or `running` at once, and the rest
    are `waiting`."""
    group_id: int | None = None
    """The group that has not ended before this task has."""
    after_group: int | None = None
    """`waiting` until this group has ended."""
    is_command: bool = False
    """A command: it goes ahead of every task, and once it has started it is never run again."""
    provider: str | None = None
    """The provider that a command is for; so that the commands for a server that is taken away can be found."""
    target: str | None = None
    """Only this server will do."""
    requirements: str = KIND_DEFAULT
    """The text of what it demands of a node (`requirements.Requirements`)."""


class Insertion(msgspec.Struct, frozen=True):
    """What became of one NewTask: the id of the task that now stands for it."""

    id: int
    created: bool
    """False: a live task held the key, and `id` is that task (replaced, if that was asked)."""
    state: State


class Woken(Record, frozen=True, kw_only=True):
    """What a look at the clock did."""

    kinds: dict[str, int]
    """How many tasks of each kind became ready."""
    expired: tuple[int, ...] = ()
    """Tasks that ended because nobody started them in time."""
    next_in: int | None = None
    """Microseconds until the next task is due or expires; None: nothing is."""


class Moved(Record, frozen=True, kw_only=True):
    """What an operation did to one task. `state` is the one it is in now; None: there is no such task."""

    id: int
    done: bool
    """Whether the operation took effect (for a cancel of a running task: was recorded)."""
    state: State | None
    kind: str | None = None
    node_id: str | None = None
    """The node that runs it, for a cancel of a running task."""
    key_holder: int | None = None
    """A retry was refused because this live task holds the unique key."""
    group_id: int | None = None
    """The group that it has left by ending or by being deleted."""


class Reaped(Record, frozen=True, kw_only=True):
    """A task taken from a dead node."""

    id: int
    kind: str
    node_id: str
    state: State
    crashes: int
    released: tuple[str, ...] = ()
    """The kinds of other tasks that became ready with the same call: groups that waited for nothing else have ended,
    lines have moved on. The last one says so for all."""


class Rescheduling(Record, frozen=True, kw_only=True):
    """When a waiting task shall be due instead: at `run_at`, or `delay` microseconds after the store's now."""

    id: int
    run_at: int | None = None
    delay: int | None = None


class Reprioritizing(Record, frozen=True, kw_only=True):
    """Which priority a waiting task shall have instead."""

    id: int
    priority: int


class Cutoffs(Record, frozen=True, kw_only=True):
    """Ages in microseconds past which ended tasks leave the history, and orders are forgotten; None keeps them."""

    succeeded: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    audit: int | None = None
