"""What a node says of itself, for others to read: what it has, what of it is free, and what holds the rest.

It stands in the node's row as JSON, and is as old as the row says. Nobody decides by it what runs where: the claim of
the node itself does. It answers questions: why a task waits, and whether anybody could ever run it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from synergon.demands import AS_THE_KIND_SAYS, NOTHING, Demand, completed, is_suitable, parse_demand


class Places(NamedTuple):
    """How many more tasks of a kind a node could start, by each thing that it has only so many of."""

    slots: int
    of_kind: int | None = None
    """Of the kind's `max_running`."""
    processes: int | None = None
    """If its bodies run in child processes."""

    @property
    def room(self) -> int:
        """So many could start."""
        room = self.slots
        if self.of_kind is not None and self.of_kind < room:
            room = self.of_kind
        if self.processes is not None and self.processes < room:
            room = self.processes
        return room


HOLDERS: Final = 3
"""How many of the tasks that hold a resource are named; those that hold most of it."""


class KindState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of one of its kinds."""

    max_running: int | None = None
    is_process: bool = False
    """Its bodies share the places of child processes."""
    demand: str = AS_THE_KIND_SAYS
    """What those of its tasks demand whose rows say nothing; empty: nothing."""
    rank: int = 0
    priority: int = 0
    """Of its tasks, unless they are enqueued with another."""
    is_urgent: bool = False
    is_resting: bool = False
    """Nobody yields to its tasks for a while, although they are urgent."""
    is_asking: bool = False
    """It looks at each task before it takes it (`can_accept`)."""
    is_command: bool = False
    limits: tuple[str, ...] = ()
    """In each of these a task takes a place while it runs."""
    provider: str | None = None
    """On whose servers its tasks run."""


PLAIN: Final = KindState()


class NodeState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node says of itself."""

    is_said: bool = False
    """False: it has said nothing at all yet."""
    labels: tuple[str, ...] = ()
    """In order."""
    totals: dict[str, int] = {}
    """What it has of each resource, in the whole numbers of `demands`."""
    free: dict[str, int] = {}
    """What of it no running task uses; less than nothing, while an urgent one waits for others to yield."""
    yielding: dict[str, int] = {}
    """What running tasks would yield to an urgent one."""
    held: dict[str, int] = {}
    """What of the free others must leave to the task that room is kept for."""
    kept_for: int | None = None
    brief: tuple[str, ...] = ()
    """Kinds whose tasks end before that one starts, so that nothing need be left to it."""
    slots_free: int = 0
    slots_yielding: int = 0
    """Slots that running tasks would yield to an urgent one."""
    processes_free: int = 0
    processes_yielding: int = 0
    commands_free: int = 0
    taken: int = 0
    """How many tasks have ever started there; so it is known whose turn it is."""
    promised: tuple[int, ...] = ()
    """Urgent tasks that it has claimed, and that wait for others to yield."""
    running: dict[str, int] = {}
    """How many run, or are about to, by kind, without zeros."""
    is_cordoned: bool = False
    is_stopping: bool = False
    leaving: str | None = None
    """`drain` or `restart`: it ends when nothing runs there any more, and why."""
    kinds: dict[str, KindState] = {}
    """Only those of which there is something to say; of the others `kind()` says PLAIN."""
    holders: dict[str, tuple[int, ...]] = {}
    """For each resource in use a few of the tasks that hold it."""

    def kind(self, name: str) -> KindState:
        """What it says of one of its kinds; whether it runs that kind at all stands in its row."""
        return self.kinds.get(name, PLAIN)


UNSAID: Final = NodeState()


def could_run(state: NodeState, kind: str, text: str) -> bool:
    """Whether a node that says this could ever run a task of one of its kinds that demands this; if it has said nothing
    it might."""
    if not state.is_said:
        return True
    return is_suitable(demanded_of(state, kind, text), frozenset(state.labels), state.totals)


def demanded_of(state: NodeState, kind: str, text: str) -> Demand:
    """What a row with this text demands on a node that says this."""
    said = state.kind(kind).demand
    of_kind = parse_demand(said) if said else NOTHING
    return completed(parse_demand(text), of_kind) if text else of_kind


def places_on(state: NodeState, kind: str) -> Places:
    """How many more tasks of one of its kinds a node could start that says this."""
    said = state.kind(kind)
    slots, processes = state.slots_free, state.processes_free
    if said.is_command:
        slots = state.commands_free
    elif said.is_urgent and not said.is_resting:
        slots, processes = slots + state.slots_yielding, processes + state.processes_yielding
    return Places(
        slots,
        None if said.max_running is None else said.max_running - state.running.get(kind, 0),
        processes if said.is_process else None,
    )


_decoder: Final = msgspec.json.Decoder(NodeState)


def encode_state(state: NodeState) -> bytes:
    """What stands in the node's row."""
    return msgspec.json.encode(state)


def read_state(published: bytes) -> NodeState:
    """What a node's row says; UNSAID if it says nothing, or nothing that this release can read."""
    try:
        return _decoder.decode(published)
    except msgspec.MsgspecError:
        return UNSAID
