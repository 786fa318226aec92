"""The status of a node: its capacity, how much of it is free, and which tasks use the rest.

The node's row contains the status as JSON, with its age. Claims do not depend on it: they use the request of the node.
The status serves to explain why a task waits, and whether any node can ever run it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from synergon.model.record import READ_ERRORS
from synergon.model.requirements import (
    KIND_DEFAULT,
    NO_REQUIREMENTS,
    SLOT,
    Requirements,
    is_suitable,
    parse_requirements,
    with_execution,
    with_kind_defaults,
)


class FreeSlots(NamedTuple):
    """How many more tasks of a kind a node can start, by each of its two bounds."""

    slots: int
    of_kind: int | None = None
    """How much of the kind's `max_running` remains. None if the kind has no `max_running`."""

    @property
    def free(self) -> int:
        """How many more tasks can start, by both bounds."""
        return self.slots if self.of_kind is None or self.of_kind > self.slots else self.of_kind


HOLDERS: Final = 3
"""How many tasks that use a resource are named in a status. Those that use most of it come first."""


class KindStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of one kind of a node."""

    max_running: int | None = None
    is_process: bool = False
    """Whether the task functions of the kind run in child processes, unless a call overrides it."""
    is_threaded: bool = False
    """The task functions of the kind run in threads, unless they run in child processes."""
    requirements: str = KIND_DEFAULT
    """The requirements of tasks that have none of their own, as text. Empty means none."""
    rank: int = 0
    is_urgent: bool = False
    has_can_accept: bool = False
    """Whether the kind has `can_accept`."""
    is_command: bool = False
    limits: tuple[str, ...] = ()
    """The limits whose permits a task holds while it runs."""
    provider: str | None = None
    """The provider on whose servers the tasks run."""
    is_isolable: bool = True
    """The task function can run in a child process. Otherwise suspects of the kind run alone on the node."""

    @property
    def weight(self) -> Requirements:
        """The requirements of tasks that have none of their own; they include the child process or the thread that
        the kind runs in."""
        own = parse_requirements(self.requirements) if self.requirements else NO_REQUIREMENTS
        return with_execution(own, is_process=self.is_process, is_threaded=self.is_threaded)


PLAIN: Final = KindStatus()


class HintStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How peers answer the requests in which a node sends hints."""

    answered: int = 0
    unanswered: int = 0
    p50_seconds: float | None = None
    """The longest time that the faster half of the latest answers took. None if there are no answers."""
    p95_seconds: float | None = None

    @classmethod
    def of(cls, answered: int, unanswered: int, latest_seconds: Iterable[float]) -> HintStatus:
        """The status, with the percentiles of the latest answers."""
        ordered = sorted(latest_seconds)
        p50, p95 = (ordered[int(len(ordered) * part)] if ordered else None for part in (0.5, 0.95))
        return cls(answered=answered, unanswered=unanswered, p50_seconds=p50, p95_seconds=p95)


NO_HINTS: Final = HintStatus()


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The published status of a node."""

    is_published: bool = False
    """Whether the node has published a status."""
    lease_seconds: float = 0.0
    """The length of its lease. 0 if the node has not published it."""
    labels: tuple[str, ...] = ()
    """The labels of the node, sorted."""
    totals: dict[str, int] = {}
    """The total of each resource, of child processes, threads and bounds, in the integer units of
    `model.requirements`."""
    free: dict[str, int] = {}
    """The amounts that no running task uses. Negative while an urgent task waits for others to yield."""
    yielding: dict[str, int] = {}
    """What running tasks would yield to an urgent task whose kind is not in `backed_off`, including slots."""
    backed_off: dict[str, float] = {}
    """The urgent kinds to which running tasks did not yield, each with the remaining seconds of its back-off."""
    shares: tuple[dict[str, int], ...] = ()
    """The distinct costs of running tasks."""
    held: dict[str, int] = {}
    """The part of the free amounts that is held for the reserved task."""
    reserved_task: int | None = None
    reserved_kind: str | None = None
    """The kind of the reserved task. One task of the kind's `max_running` is held for it, too."""
    patience: float | None = None
    """How many seconds a task that does not fit must have waited before capacity is reserved for it. None means
    never."""
    brief: tuple[str, ...] = ()
    """Kinds whose tasks end before the reserved task can start, and may use the capacity held for it."""
    slots_free: int = 0
    commands_free: int = 0
    taken: int = 0
    """How many tasks have started since the node was made. This number determines which provider gets the next slot."""
    promised: tuple[int, ...] = ()
    """Claimed urgent tasks that wait for others to yield."""
    running: dict[str, int] = {}
    """The number of tasks that run or are promised capacity, by kind, without zeros."""
    is_cordoned: bool = False
    is_stopping: bool = False
    departure: str | None = None
    """`drain` or `restart`, if the node stops as soon as no task runs on it. None otherwise."""
    kinds: dict[str, KindStatus] = {}
    """Only kinds with a status other than PLAIN, which `kind()` returns for all others."""
    schedules: tuple[str, ...] = ()
    """The schedules that the code of the node declares, sorted."""
    hints: HintStatus = NO_HINTS
    holders: dict[str, tuple[int, ...]] = {}
    """For each resource in use, a few of the tasks that use it."""

    def kind(self, name: str) -> KindStatus:
        """The status of a kind. Whether the node runs the kind at all is in its row, not here."""
        return self.kinds.get(name, PLAIN)


UNKNOWN_STATUS: Final = NodeStatus()


def could_run(state: NodeStatus, kind: str, text: str) -> bool:
    """Whether a node with this status can ever run a task with these requirements. True if the node has not published a
    status."""
    if not state.is_published:
        return True
    return is_suitable(requirements_on(state, kind, text), frozenset(state.labels), state.totals)


def requirements_on(state: NodeStatus, kind: str, text: str) -> Requirements:
    """The requirements of a task on a node with this status, from the text in its row."""
    said = state.kind(kind)
    if not text:
        return said.weight
    parsed = parse_requirements(text)
    return with_kind_defaults(parsed, said.weight, is_isolable=said.is_isolable, is_threaded=said.is_threaded)


def free_slots_on(state: NodeStatus, kind: str) -> FreeSlots:
    """How many more tasks of the kind a node with this status can start."""
    return free_slots(
        state.kind(kind),
        slots=state.slots_free,
        commands=state.commands_free,
        yielded=0 if kind in state.backed_off else state.yielding.get(SLOT, 0),
        running=state.running.get(kind, 0),
    )


def free_slots(kind: KindStatus, *, slots: int, commands: int, yielded: int, running: int) -> FreeSlots:
    """How many more tasks of a kind a node can start. `slots` are its free slots for tasks, and `commands` those for
    commands. Running tasks would yield `yielded` slots to an urgent kind, and `running` tasks of the kind run
    already."""
    free = commands if kind.is_command else slots
    if kind.is_urgent and not kind.is_command:
        free += yielded
    return FreeSlots(free, None if kind.max_running is None else kind.max_running - running)


_decoder: Final = msgspec.json.Decoder(NodeStatus)


def encode_status(state: NodeStatus) -> bytes:
    """Encode a status for the node's row."""
    return msgspec.json.encode(state)


def read_status(published: bytes) -> NodeStatus:
    """Decode a node's status. Returns `UNKNOWN_STATUS` if this release cannot read it."""
    try:
        return _decoder.decode(published)
    except READ_ERRORS:
        return UNKNOWN_STATUS
