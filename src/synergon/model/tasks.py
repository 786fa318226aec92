"""Records of tasks that enter or change in a store: new tasks, insertions, changes, operations."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from synergon.model.dependencies import IfFails, Need
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
    unique_for: int | None = None
    """The key stays taken for this many microseconds after the store has accepted the task, also if the task ends
    earlier."""
    tags: tuple[str, ...] = ()
    meta: bytes | None = None
    """A JSON object."""
    title: str | None = None
    """A short text for people that says what the task is about."""
    keep_for: int | None = None
    """For how many microseconds the task remains in the history. None means as long as the retention says."""
    origin: str | None = None
    """The engine that is notified of the end of the task."""
    limit_key: str | None = None
    """The key of the task's key queue. Only a limited number of tasks of a key queue are `ready` or `running` at once;
    the others are `waiting`."""
    group_id: int | None = None
    """The group that the task belongs to."""
    parent_id: int | None = None
    """The task that has created this one when it succeeded. The store sets it."""
    after: tuple[Need, ...] = ()
    """The tasks that it depends on. It is `waiting` until all of them have ended."""
    if_dependency_fails: IfFails = "cancel"
    is_dependent: bool = False
    """Whether the task waits for dependencies. The store sets this field and the next two."""
    has_dependencies: bool = False
    """Whether there are rows of dependencies of this task, open or not."""
    has_dependents: bool = False
    """Whether other tasks may depend on this one, so that its end concerns them."""
    is_command: bool = False
    """Whether the task is a command: it precedes every task, and is never run again after it has started."""
    provider: str | None = None
    """The provider of a command. Used to find the commands for a removed server."""
    target: str | None = None
    """The only server that may run the task."""
    requirements: str = KIND_DEFAULT
    """The requirements of the task, as text (`requirements.Requirements`)."""
    units: int = 1
    """How many units each start of the task charges to the rates of its limits."""
    fair_key: str | None = None
    """The tenant of the task. The tenants of a kind take turns. None if the kind has no `fair_by`."""
    fair_step: int = 0
    """The distance between the tags of two tasks of the tenant: the smaller, the more tasks it starts."""
    fair_tag: int = 0
    """The position of the task among those of its kind and priority (`rules.fair_shares`). The store assigns it when
    the task first becomes ready. 0 until then, and for tasks without a tenant."""


class Insertion(msgspec.Struct, frozen=True):
    """The result of inserting a NewTask: the new task, or the live task that held its key."""

    id: int
    created: bool
    """Whether a new row was inserted. False if a task held the key: `id` is that task, perhaps replaced."""
    state: State | None
    """None if a task that has ended holds the key (`NewTask.unique_for`)."""
    completes_batch: bool = False
    """Whether an earlier task became ready with this call: the leader of a batch that is complete now. Only the last
    insertion of a call says so."""
    is_of_other_request: bool = False
    """Whether nothing was stored, because another request had this request key: `id` is the task of that request."""


class RequestKey(Record, frozen=True, kw_only=True):
    """The key of a request that may be repeated, and a digest of the rest of the request."""

    key: str
    digest: str


class FollowUps(Record, frozen=True, kw_only=True):
    """What a call has changed besides the tasks that it names."""

    ready: tuple[str, ...] = ()
    """The kinds of the tasks that became ready."""
    ended: tuple[int, ...] = ()
    """The tasks that were cancelled because of a dependency."""


class Woken(Record, frozen=True, kw_only=True):
    """The result of `Store.wake`."""

    kinds: dict[str, int]
    """How many tasks of each kind became ready."""
    expired: tuple[int, ...] = ()
    """Tasks that ended because they were not started in time, and those that were cancelled because of them."""
    next_in: int | None = None
    """Microseconds until the next task is due or expires, or a server's back-off ends. None if there is no such
    moment."""


MAP_SUCCEEDED: Final = "it is a map that has created its items; retry those, or enqueue the flow again"
"""Why a map that has succeeded is not retried."""

NEEDED: Final = "task {} depends on it and may need its result; cancel that one, or wait for its end"
"""Why a task that a live task depends on is not deleted."""


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
    is_map: bool = False
    """Whether a retry failed because the task is a map that has created its items."""
    group_id: int | None = None
    """The group of a task that was ended or deleted."""
    needed_by: int | None = None
    """The live task that depends on it, if a delete failed because of it."""
    follow_ups: FollowUps | None = None
    """What else the call has changed. Only the first entry of a call has it."""


class Reaped(Record, frozen=True, kw_only=True):
    """A task that was taken from a dead node."""

    id: int
    kind: str
    node_id: str
    state: State
    owner_deaths: int
    released: tuple[str, ...] = ()
    """The kinds of other tasks that became ready in this call, because tasks that they depend on have ended or key
    queues were balanced. Only the last entry of a call has this field and the next."""
    ended: tuple[int, ...] = ()
    """The tasks that were cancelled because of a dependency."""


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
    """The ages in microseconds after which final tasks, statistics and operator actions are deleted. None means
    never."""

    succeeded: int | None = None
    failed: int | None = None
    cancelled: int | None = None
    statistics: int | None = None
    audit: int | None = None


class StoredRetention(Record, frozen=True, kw_only=True):
    """The retention of a store, which holds for all nodes: ages in microseconds, as in `Cutoffs`."""

    succeeded: int | None
    failed: int | None
    cancelled: int | None
    statistics: int | None = None
    declared: str = ""
    """The last declaration of a worker, as JSON. Empty if there is none."""
    declared_by: str = ""
    """The name of the node that made it."""
