"""How many tasks of each kind may start here now, and what the node says of itself when it asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from synergon.demands import AS_THE_KIND_SAYS, NOTHING
from synergon.node.asking import Asking, kind_state
from synergon.node.ledger import Ledger
from synergon.node.preemption import PROCESS, SLOT, Preemption
from synergon.node.reservation import PATIENCE_SECONDS, Reservation
from synergon.node_state import Places
from synergon.pipelines import ranks
from synergon.records import ClaimRequest, Claims, Kept, Look, Room
from synergon.stores.weighing import demand_of, is_suitable
from synergon.task import AnyTask


class Admission:
    """Turns free capacity into a claim request. It asks for nothing that could not start at once; but for an old task
    that does not fit it keeps room (`Reservation`)."""

    def __init__(
        self,
        kinds: Mapping[str, AnyTask],
        ledger: Ledger,
        queues: frozenset[str] | None,
        *,
        labels: frozenset[str] = frozenset(),
        reservation: Reservation | None = None,
        preemption: Preemption | None = None,
    ) -> None:
        self._kinds = kinds
        self._ledger = ledger
        self._queues = queues
        self.labels = labels
        self._reservation = reservation
        self._preemption = preemption
        order = ranks(kinds)
        self._rooms = {kind: _room(task_type, order[kind]) for kind, task_type in kinds.items()}
        said = {kind: kind_state(self._rooms[kind], task_type) for kind, task_type in kinds.items()}
        self._asking = Asking(said, ledger, self._counted)

    def serves(self, kind: str, queue: str | None) -> bool:
        """Whether tasks of this lane run here; a queue that nobody knows might be another one."""
        return kind in self._kinds and (self._queues is None or queue in self._queues)

    def kinds(self) -> Iterator[tuple[Room, AnyTask]]:
        """What there is to say of each kind; how much room there is for it is not in there."""
        return ((self._said(kind), task_type) for kind, task_type in self._kinds.items())

    def request(self, node_id: str, wanted: Collection[str]) -> ClaimRequest | None:
        """What to claim of the wanted kinds; None: there is no room for any, or whoever has yielded is to have its
        place back first."""
        if self._preemption is not None and self._preemption.is_anybody_returning:
            return None
        rooms = self._asking.rooms(wanted)
        if not rooms:
            return None
        request = ClaimRequest(
            node_id=node_id,
            rooms=tuple(rooms),
            limit=self._asking.limit(rooms),
            queues=self._queues,
            labels=self.labels,
            totals=self._ledger.totals,
            free=self._ledger.unpromised,
            yielding=self._yielding(rooms),
        )
        if self._reservation is None:
            return request
        return self._reservation.honoured(request, self._counted, self.places)

    def _yielding(self, rooms: list[Room]) -> dict[str, int]:
        """What running tasks would yield to those of the rooms that are urgent. A kind that rests takes nothing from
        the others: its own room says that it is offered nothing."""
        urgent = next((room.kind for room in rooms if room.is_urgent and not room.is_resting), None)
        if self._preemption is None or urgent is None:
            return {}
        offer = self._preemption.yielding(urgent)  # to all of them the same
        return {name: offer[name] for name in self._ledger.totals}

    def look(self, kind: str, after: tuple[int, int] | None, limit: int) -> Look:
        """The same for a node that wants to see candidates of a kind before it claims them."""
        return Look(
            room=self._rooms[kind],
            queues=self._queues,
            labels=self.labels,
            totals=self._ledger.totals,
            after=after,
            limit=limit,
        )

    def _counted(self, kind: str) -> Room:
        return msgspec.structs.replace(self._said(kind), count=max(self.room(kind), 0))

    def _said(self, kind: str) -> Room:
        room = self._rooms[kind]
        if room.is_urgent and self._preemption is not None and self._preemption.is_resting(kind):
            return msgspec.structs.replace(room, is_resting=True)
        return room

    def has_room(self, kind: str) -> bool:
        """Whether a task of this kind, of any kind there is, could start now."""
        return kind in self._kinds and self.expected(kind) > 0

    def has_any_room(self, kind: str | None) -> bool:
        """The same; None: whether there is a slot at all."""
        return self._ledger.free > 0 if kind is None else self.has_room(kind)

    def room(self, kind: str) -> int:
        """How many tasks of this kind could start now, as far as slots go; an urgent one where others yield."""
        return self.places(kind).room

    def places(self, kind: str) -> Places:
        """The same, by what there are slots for (`node_state.places_on` says it of nodes elsewhere)."""
        task_type = self._kinds[kind]
        policy, ledger = task_type.policy, self._ledger
        room = ledger.commands_free if task_type.is_command else ledger.free
        processes = ledger.processes_free
        if policy.urgent and self._preemption is not None:
            yielding = self._preemption.yielding(kind)
            room, processes = room + yielding[SLOT], processes + yielding[PROCESS]
        return Places(
            room,
            None if policy.max_running is None else policy.max_running - ledger.count(kind),
            processes if policy.runs_in == "process" else None,
        )

    def expected(self, kind: str, text: str = AS_THE_KIND_SAYS) -> int:
        """How many tasks of this kind, with this demand, could start now without anybody yielding: where there is room
        elsewhere, that is better."""
        room, demand = self.room(kind), demand_of(self._rooms[kind], text)
        if self._kinds[kind].policy.urgent:
            room = min(room, self._ledger.free)
        if demand == NOTHING:
            return room
        if not is_suitable(demand, self.labels, self._ledger.totals):
            return 0
        available = self._ledger.unpromised
        return min([room, *(available[name] // amount for name, amount in demand.cost.items())])

    # ------------------------------------------------------------ what does not fit

    def note(self, claims: Claims) -> bool:
        """What a claim has found; whether other tasks may fit now that did not, or were not looked at."""
        return self._reservation is not None and self._reservation.note(claims)

    def keep_nothing(self) -> None:
        """Keep room for no task any more."""
        if self._reservation is not None:
            self._reservation.forget()

    @property
    def held(self) -> dict[str, int]:
        """How much of what is free must be left to the task that room is kept for."""
        return {} if self._reservation is None else self._reservation.held(self._ledger.unpromised)

    @property
    def yielding(self) -> dict[str, int]:
        """What running tasks would yield to urgent ones, of each resource."""
        return self._yielding([room for room, _ in self.kinds()])

    @property
    def slots_yielding(self) -> int:
        """The same in slots."""
        return self._yielding_of(SLOT)

    @property
    def processes_yielding(self) -> int:
        """The same in child processes."""
        return self._yielding_of(PROCESS)

    def _yielding_of(self, what: str) -> int:
        if self._preemption is None:
            return 0
        return max(
            (self._preemption.yielding(room.kind)[what] for room, _ in self.kinds() if room.is_urgent), default=0
        )

    @property
    def brief(self) -> list[str]:
        """Kinds that need leave nothing to the task that room is kept for."""
        if self._reservation is None or self._reservation.kept is None:
            return []
        return self._reservation.brief(self._rooms.values(), self._ledger.unpromised)

    @property
    def kept(self) -> Kept | None:
        """The task that room is kept for."""
        return None if self._reservation is None else self._reservation.kept

    @property
    def patience_seconds(self) -> float:
        """For how long a task that does not fit lets others pass."""
        return PATIENCE_SECONDS if self._reservation is None else self._reservation.patience_seconds

    @property
    def returns(self) -> int:
        """Grows whenever something of a resource was given back."""
        return self._ledger.returns


def _room(task_type: AnyTask, rank: int) -> Room:
    """What a task of this kind needs besides a slot of the node."""
    return Room(
        kind=task_type.kind,
        count=0,
        limits=task_type.limits,
        provider=task_type.provider.name if task_type.provider is not None else None,
        is_rated=task_type.policy.rate is not None,
        is_command=task_type.is_command,
        demand=task_type.demand,
        rank=rank,
        is_urgent=task_type.policy.urgent,
    )
