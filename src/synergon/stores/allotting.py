"""Who gets a place: the decision that every store makes in its claim, from what it has locked and counted.

Usage is derived: what a limit or server has in use is the number of running rows that name it. All limits that apply
hold together, and a task is given its places and its server in one step or not at all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from synergon.addresses import covers
from synergon.records import Room

UNLIMITED = 2**31


class Holding(NamedTuple):
    """What one running task holds."""

    limits: tuple[str, ...]
    provider: str | None
    server: str | None
    slot: int | None


class Candidate(NamedTuple):
    """A ready task that might be taken."""

    id: int
    priority: int
    kind: str
    target: str | None = None
    avoid: str | None = None
    """The server that has just failed it."""


class Seat(NamedTuple):
    """What a task that is taken holds."""

    limits: tuple[str, ...]
    provider: str | None = None
    server: str | None = None
    slot: int | None = None


@dataclass(slots=True)
class PooledServer:
    """A server of a provider, as its row says."""

    provider: str
    address: str
    capacity: int | None
    is_resting: bool = False
    is_on_trial: bool = False
    """It has rested and not succeeded since: one task at a time."""
    slots: set[int] = field(default_factory=set)

    @property
    def free(self) -> int:
        """How many more it could take."""
        if self.is_resting:
            return 0
        most = UNLIMITED if self.capacity is None else self.capacity
        return max((min(most, 1) if self.is_on_trial else most) - len(self.slots), 0)

    @property
    def load(self) -> float:
        """How full it is, from 0 to 1."""
        return len(self.slots) / (self.capacity or UNLIMITED)

    def take_slot(self) -> int:
        """The lowest one that nobody has."""
        slot = next(number for number in range(len(self.slots) + 1) if number not in self.slots)
        self.slots.add(slot)
        return slot


class Allotment:
    """The places that are left, while a claim takes them one by one."""

    def __init__(
        self, values: Mapping[str, int | None], servers: Iterable[PooledServer], holdings: Iterable[Holding]
    ) -> None:
        self._values = values
        self._servers: dict[str, list[PooledServer]] = defaultdict(list)
        for server in servers:
            self._servers[server.provider].append(server)
        self._above: dict[str, tuple[str, ...]] = {}
        self._used: Counter[str] = Counter()
        for holding in holdings:
            self._count(holding)

    def _count(self, holding: Holding) -> None:
        self._use(holding.limits, holding.server)
        if holding.server is None:
            return
        for server in self._servers.get(holding.provider or "", ()):
            if server.address == holding.server and holding.slot is not None:
                server.slots.add(holding.slot)

    def _use(self, limits: tuple[str, ...], server: str | None) -> None:
        # A name may be both: held by name, and a prefix of the server. It is one task all the same.
        self._used.update({*limits, *(() if server is None else self._prefixes(server))})

    def _prefixes(self, address: str) -> tuple[str, ...]:
        """The limits that cover a server."""
        above = self._above.get(address)
        if above is None:
            above = self._above[address] = tuple(name for name in self._values if covers(name, address))
        return above

    def _room(self, names: Iterable[str]) -> int:
        return min((self._left(name) for name in names), default=UNLIMITED)

    def _left(self, name: str) -> int:
        value = self._values.get(name)
        return UNLIMITED if value is None else max(value - self._used[name], 0)

    def most(self, room: Room) -> int:
        """More than this cannot be taken of the kind, whatever its tasks are."""
        most = min(room.count, self._room(room.limits))
        if room.provider is not None:
            servers = self._servers.get(room.provider, ())
            most = min(most, sum(min(server.free, self._room(self._prefixes(server.address))) for server in servers))
        return most

    def take(self, room: Room, candidate: Candidate) -> Seat | None:
        """A place in every limit and on a server, for this task; None: there is none."""
        if self._room(room.limits) == 0:
            return None
        if room.provider is None:
            self._use(room.limits, None)
            return Seat(room.limits)
        server = self._choose(room.provider, candidate)
        if server is None:
            return None
        self._use(room.limits, server.address)
        return Seat(room.limits, room.provider, server.address, server.take_slot())

    def _choose(self, provider: str, candidate: Candidate) -> PooledServer | None:
        """Free first, then one that has not just failed it, then the least loaded, then in turn."""
        servers = self._servers.get(provider, [])
        open_ones = [
            (server.address == candidate.avoid, server.load, (index + candidate.id) % len(servers), index)
            for index, server in enumerate(servers)
            if candidate.target in (None, server.address)
            and server.free > 0
            and self._room(self._prefixes(server.address)) > 0
        ]
        return servers[min(open_ones)[3]] if open_ones else None
