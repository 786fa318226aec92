"""What a node says of itself, for others to read: what it has, what of it is free, and what holds the rest.

It stands in the node's row as JSON, and is as old as the row says. Nobody decides by it what runs where: the claim of
the node itself does. It answers questions: why a task waits, and whether anybody could ever run it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from synergon.model.requirements import (
    KIND_DEFAULT,
    NO_REQUIREMENTS,
    SLOT,
    Requirements,
    is_suitable,
    parse_requirements,
    with_kind_defaults,
    with_process,
)


class FreeSlots(NamedTuple):
    """How many more tasks of a kind a node could start, by each thing that it has only so many of."""

    slots: int
    of_kind: int | None = None
    """Of the kind's `max_running`."""

    @property
    def free(self) -> int:
        """So many could start."""
        return self.slots if self.of_kind is None or self.of_kind > self.slots else self.of_kind


HOLDERS: Final = 3
"""How many of the tasks that hold a resource are named; those that hold most of it."""


class KindStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of one of its kinds."""

    max_running: int | None = None
    is_process: bool = False
    """Its bodies take child processes, unless their rows say otherwise."""
    requirements: str = KIND_DEFAULT
    """The requirements of its tasks whose rows have none of their own; empty: none."""
    rank: int = 0
    is_urgent: bool = False
    is_asking: bool = False
    """It looks at each task before it takes it (`can_accept`)."""
    is_command: bool = False
    limits: tuple[str, ...] = ()
    """In each of these a task takes a place while it runs."""
    provider: str | None = None
    """On whose servers its tasks run."""

    @property
    def weight(self) -> Requirements:
        """The requirements of those of its tasks whose rows say nothing, a child process included."""
        return with_process(
            parse_requirements(self.requirements) if self.requirements else NO_REQUIREMENTS, is_process=self.is_process
        )


PLAIN: Final = KindStatus()


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of itself."""

    is_published: bool = False
    """False: it has said nothing at all yet."""
    labels: tuple[str, ...] = ()
    """In order."""
    totals: dict[str, int] = {}
    """What it has of each resource, and of child processes, in the whole numbers of `model.requirements`."""
    free: dict[str, int] = {}
    """What of it no running task uses; less than nothing, while an urgent one waits for others to yield."""
    yielding: dict[str, int] = {}
    """What running tasks would yield to an urgent one, slots too, unless its kind is `backed_off`."""
    backed_off: dict[str, float] = {}
    """Urgent kinds to which running tasks did not yield, and for how many seconds nobody is asked to again."""
    shares: tuple[dict[str, int], ...] = ()
    """What single running tasks use; of those that use the same, one."""
    held: dict[str, int] = {}
    """What of the free others must leave to the task that room is kept for."""
    reserved_task: int | None = None
    reserved_kind: str | None = None
    """The kind of that task: of its `max_running`, one place is left to it, too."""
    patience: float | None = None
    """Seconds after which it keeps room for a task that does not fit; None: it keeps none."""
    brief: tuple[str, ...] = ()
    """Kinds whose tasks end before that one starts, so that nothing need be left to it."""
    slots_free: int = 0
    commands_free: int = 0
    taken: int = 0
    """How many tasks have ever started there; so it is known whose turn it is."""
    promised: tuple[int, ...] = ()
    """Urgent tasks that it has claimed, and that wait for others to yield."""
    running: dict[str, int] = {}
    """How many run, or are about to, by kind, without zeros."""
    is_cordoned: bool = False
    is_stopping: bool = False
    departure: str | None = None
    """`drain` or `restart`: it ends when nothing runs there any more, and why."""
    kinds: dict[str, KindStatus] = {}
    """Only those of which there is something to say; of the others `kind()` says PLAIN."""
    holders: dict[str, tuple[int, ...]] = {}
    """For each resource in use a few of the tasks that hold it."""

    def kind(self, name: str) -> KindStatus:
        """What it says of one of its kinds; whether it runs that kind at all stands in its row."""
        return self.kinds.get(name, PLAIN)


UNKNOWN_STATUS: Final = NodeStatus()


def could_run(state: NodeStatus, kind: str, text: str) -> bool:
    """Whether a node that says this could ever run a task of one of its kinds that demands this; if it has said nothing
    it might."""
    if not state.is_published:
        return True
    return is_suitable(requirements_on(state, kind, text), frozenset(state.labels), state.totals)


def requirements_on(state: NodeStatus, kind: str, text: str) -> Requirements:
    """What a row with this text demands on a node that says this."""
    of_kind = state.kind(kind).weight
    return with_kind_defaults(parse_requirements(text), of_kind) if text else of_kind


def free_slots_on(state: NodeStatus, kind: str) -> FreeSlots:
    """How many more tasks of one of its kinds a node could start that says this."""
    said = state.kind(kind)
    slots = state.slots_free
    if said.is_command:
        slots = state.commands_free
    elif said.is_urgent and kind not in state.backed_off:
        slots += state.yielding.get(SLOT, 0)
    return FreeSlots(slots, None if said.max_running is None else said.max_running - state.running.get(kind, 0))


_decoder: Final = msgspec.json.Decoder(NodeStatus)


def encode_status(state: NodeStatus) -> bytes:
    """What stands in the node's row."""
    return msgspec.json.encode(state)


def read_status(published: bytes) -> NodeStatus:
    """What a node's row says; UNSAID if it says nothing, or nothing that this release can read."""
    try:
        return _decoder.decode(published)
    except msgspec.MsgspecError:
        return UNKNOWN_STATUS
