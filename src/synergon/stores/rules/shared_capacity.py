"""Decides which tasks get permits of limits and servers, from rows that the store has locked and counted.

The usage of a limit or server is the number of running rows that name it. A task gets all its permits and its server in
one step, or none of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple, Protocol, Self

from synergon.model.claims import KindRequest
from synergon.options.addresses import covers

UNLIMITED = 2**31


class HeldPermits(NamedTuple):
    """The permits of one running task."""

    limits: tuple[str, ...]
    provider: str | None
    server: str | None
    slot: int | None


class PermitSeeker(Protocol):
    """A ready task that needs permits."""

    @property
    def id(self) -> int:
        """The task's id."""

    @property
    def target(self) -> str | None:
        """The only server that may run the task; None if any server of its provider may."""

    @property
    def avoid(self) -> str | None:
        """The server of the previous attempt. Another one is preferred."""


class Grant(NamedTuple):
    """The permits that a taken task holds."""

    limits: tuple[str, ...]
    provider: str | None = None
    server: str | None = None
    slot: int | None = None

    @property
    def holds(self) -> str | None:
        """The names of the limits, as the task's row stores them; None if the task holds no permit."""
        return "\n".join(self.limits) if self.limits or self.provider is not None else None


@dataclass(slots=True)
class ServerCapacity:
    """A server of a provider, with its free and used slots."""

    provider: str
    address: str
    capacity: int | None
    is_backed_off: bool = False
    is_on_trial: bool = False
    """The server has backed off and not succeeded since: it gets one task at a time."""
    slots: set[int] = field(default_factory=set)
    _lowest: int = 0
    """All slots below this one are taken."""

    @property
    def free(self) -> int:
        """How many more tasks the server may take."""
        if self.is_backed_off:
            return 0
        most = UNLIMITED if self.capacity is None else self.capacity
        return max((min(most, 1) if self.is_on_trial else most) - len(self.slots), 0)

    @property
    def load(self) -> float:
        """The used share of the server's capacity, from 0 to 1."""
        return len(self.slots) / (self.capacity or UNLIMITED)

    def begin(self) -> None:
        """Mark all slots as free, before the held permits are counted."""
        self.slots.clear()
        self._lowest = 0

    def take_slot(self) -> int:
        """Take the lowest free slot."""
        slot = self._lowest
        while slot in self.slots:
            slot += 1
        self._lowest = slot + 1
        self.slots.add(slot)
        return slot

    def give_back(self, slot: int) -> None:
        """Free a slot."""
        self.slots.discard(slot)
        self._lowest = min(self._lowest, slot)


class ServerPool:
    """The servers of one provider during a claim. A claim only adds load, so a heap finds the least loaded server."""

    def __init__(self) -> None:
        self.servers: list[ServerCapacity] = []
        self._by_address: dict[str, ServerCapacity] = {}
        self._heap: list[tuple[float, int, int]] | None = None

    def add(self, server: ServerCapacity) -> None:
        """Add a server."""
        self.servers.append(server)
        self._by_address[server.address] = server

    def find(self, address: str) -> ServerCapacity | None:
        """The server with this address."""
        return self._by_address.get(address)

    def give_back(self, address: str, slot: int) -> None:
        """Free a slot of a server."""
        self._by_address[address].give_back(slot)

    def discard_heap(self) -> None:
        """Discard the heap, because a server may have less load than before."""
        self._heap = None

    def choose(self, candidate: PermitSeeker, is_open: Callable[[ServerCapacity], bool]) -> ServerCapacity | None:
        """Choose an open server for the task: its target; or the least loaded one, other than the server to avoid if
        possible. Servers with equal load are chosen in rotation."""
        if candidate.target is not None:
            server = self.find(candidate.target)
            return server if server is not None and is_open(server) else None
        server = self._least_loaded(candidate.id, is_open)
        if server is None or server.address != candidate.avoid:
            return server
        others = [other for other in self.servers if other is not server and is_open(other)]
        return others[min(_in_order(others, candidate.id))[2]] if others else server

    def _least_loaded(self, first: int, is_open: Callable[[ServerCapacity], bool]) -> ServerCapacity | None:
        heap = self._heap
        if heap is None:
            heap = self._heap = _in_order(self.servers, first)
            heapify(heap)
        while heap:
            load, tie, index = heap[0]
            server = self.servers[index]
            if not is_open(server):  # it stays closed for the whole claim
                heappop(heap)
            elif server.load != load:
                heapreplace(heap, (server.load, tie, index))
            else:
                return server
        return None


def _in_order(servers: list[ServerCapacity], first: int) -> list[tuple[float, int, int]]:
    """For each server its load, its position in the rotation, and its index."""
    return [(server.load, (index + first) % len(servers), index) for index, server in enumerate(servers)]


class SharedCapacity:
    """The free permits of limits and servers while a claim takes them one by one."""

    def __init__(
        self, values: Mapping[str, int | None], servers: Iterable[ServerCapacity], held_permits: Iterable[HeldPermits]
    ) -> None:
        self._values = values
        self._pools: dict[str, ServerPool] = defaultdict(ServerPool)
        for server in servers:
            server.begin()
            self._pools[server.provider].add(server)
        self._reserved: tuple[KindRequest, PermitSeeker, Grant] | None = None
        """The reserved task, and the permits that are held for it."""
        self._above: dict[str, tuple[str, ...]] = {}
        self._used: Counter[str] = Counter()
        for held in held_permits:
            self._count(held)

    @classmethod
    def counted(
        cls, values: Mapping[str, int | None], in_use: Mapping[str, int], servers: Iterable[tuple[ServerCapacity, int]]
    ) -> Self:
        """Create a SharedCapacity from the numbers of permits in use, for a caller that has no rows of running
        tasks."""
        listed = list(servers)
        made = cls(values, (server for server, _ in listed), ())
        made._used.update(in_use)
        for server, number in listed:
            server.slots.update(range(number))
        return made

    def _count(self, held: HeldPermits) -> None:
        self._use(held.limits, held.server)
        pool = self._pools.get(held.provider or "")
        if pool is None or held.server is None or held.slot is None:
            return
        server = pool.find(held.server)
        if server is not None:
            server.slots.add(held.slot)

    def _use(self, limits: tuple[str, ...], server: str | None, number: int = 1) -> None:
        above = () if server is None else self._prefixes(server)
        # A name may occur twice: given twice, or held by name and as a prefix of the server. It is one permit.
        for name in {*limits, *above} if above or len(limits) > 1 else limits:
            self._used[name] += number

    def _prefixes(self, address: str) -> tuple[str, ...]:
        """The limits that cover a server, because their name is a prefix of its address."""
        above = self._above.get(address)
        if above is None:
            above = self._above[address] = tuple(name for name in self._values if covers(name, address))
        return above

    def _free(self, names: tuple[str, ...]) -> int:
        return min((self._remaining(name) for name in names), default=UNLIMITED)

    def _remaining(self, name: str) -> int:
        value = self._values.get(name)
        return UNLIMITED if value is None else max(value - self._used[name], 0)

    def most(self, kind_request: KindRequest) -> int:
        """The maximum number of tasks of the kind that the free permits allow."""
        most = min(kind_request.count, self._free(kind_request.limits))
        if kind_request.provider is not None:
            servers = self._pools[kind_request.provider].servers
            most = min(most, sum(min(server.free, self._free(self._prefixes(server.address))) for server in servers))
        return most

    def open_servers(self, provider: str) -> list[str]:
        """The addresses of servers with a free permit. Tasks for other servers need not be read."""
        return [server.address for server in self._pools[provider].servers if self._is_open(server)]

    def is_covered(self, providers: Iterable[str]) -> bool:
        """Whether a limit covers any server of these providers."""
        return any(self._prefixes(server.address) for name in providers for server in self._pools[name].servers)

    def full(self, names: Iterable[str]) -> list[str]:
        """The limits of this list that have no free permit."""
        return [name for name in names if self._remaining(name) == 0]

    def full_above(self, address: str) -> list[str]:
        """The limits without a free permit that cover this server."""
        return self.full(self._prefixes(address))

    def servers_for(self, provider: str, target: str | None) -> list[ServerCapacity]:
        """The servers of a provider that may run a task with this `target`; None means any of them."""
        servers = self._pools[provider].servers
        return servers if target is None else [server for server in servers if server.address == target]

    def has_permits(self, kind_request: KindRequest, candidate: PermitSeeker) -> bool:
        """Whether `take` would find permits for this task."""
        if self.full(kind_request.limits):
            return False
        return (
            kind_request.provider is None
            or self._pools[kind_request.provider].choose(candidate, self._is_open) is not None
        )

    def hold(self, kind_request: KindRequest, candidate: PermitSeeker) -> None:
        """Hold a permit of each limit and of a server for the reserved task, if all are free. Only commands and urgent
        tasks, which precede it, may still take them."""
        grant = self._take(kind_request, candidate)
        self._reserved = None if grant is None else (kind_request, candidate, grant)

    def take(self, kind_request: KindRequest, candidate: PermitSeeker) -> Grant | None:
        """Take a permit of every limit and of a server for this task. None if one of them has no free permit."""
        if self._reserved is None:
            return self._take(kind_request, candidate)
        reserved_request, reserved, grant = self._reserved
        if candidate.id == reserved.id:
            self._reserved = None
            return grant
        found = self._take(kind_request, candidate)
        if found is None and (kind_request.is_urgent or kind_request.is_command):
            self.give_back(grant)
            found = self._take(kind_request, candidate)
            self.hold(reserved_request, reserved)
        return found

    def give_back(self, grant: Grant) -> None:
        """Free permits that were taken in this claim."""
        self._use(grant.limits, grant.server, -1)
        if grant.provider is not None and grant.server is not None and grant.slot is not None:
            self._pools[grant.provider].give_back(grant.server, grant.slot)
        for pool in self._pools.values():  # a limit may cover servers of several pools
            pool.discard_heap()

    def _take(self, kind_request: KindRequest, candidate: PermitSeeker) -> Grant | None:
        if self.full(kind_request.limits):
            return None
        if kind_request.provider is None:
            self._use(kind_request.limits, None)
            return Grant(kind_request.limits)
        server = self._pools[kind_request.provider].choose(candidate, self._is_open)
        if server is None:
            return None
        self._use(kind_request.limits, server.address)
        return Grant(kind_request.limits, kind_request.provider, server.address, server.take_slot())

    def _is_open(self, server: ServerCapacity) -> bool:
        above = self._prefixes(server.address)
        return server.free > 0 and (not above or self._free(above) > 0)
