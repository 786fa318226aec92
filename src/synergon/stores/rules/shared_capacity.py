"""Decides which tasks get permits of limits and servers, from rows that the store has locked and counted.

The usage of a limit or server is the number of running rows that name it. A task gets all its permits and its server in
one step, or none of them. A limit whose rate permits no start now has no free permit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heapreplace
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, Self

from synergon.model.claims import KindRequest
from synergon.options.addresses import covers
from synergon.stores.rules.rates import RateMeter

UNLIMITED = 2**31
NO_RATES: Final[Mapping[str, RateMeter]] = MappingProxyType({})


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
        """The only server that may run the task. None if any server of its provider may."""

    @property
    def avoid(self) -> str | None:
        """The server of the previous attempt. Another server is preferred."""

    @property
    def has_blamed(self) -> bool:
        """Whether the task has blamed a server. It then waits for another server that is in service rather than run on
        the server to avoid."""

    @property
    def units(self) -> int:
        """How many units a start of the task charges to the rates of its limits."""


class Grant(NamedTuple):
    """The permits that a task gets when it is taken, and holds while it runs."""

    limits: tuple[str, ...]
    provider: str | None = None
    server: str | None = None
    slot: int | None = None
    units: int = 1
    """How many units the start charges to the rates of the limits."""

    @property
    def holds(self) -> str | None:
        """The names of the limits, as the task's row stores them. None if the task holds no permit."""
        return "\n".join(self.limits) if self.limits or self.provider is not None else None


@dataclass(slots=True)
class ServerCapacity:
    """A server of a provider: its capacity, its health and its used slots."""

    provider: str
    address: str
    capacity: int | None
    is_backed_off: bool = False
    """Whether no task may start on the server: it backs off, or waits for a probe."""
    is_on_trial: bool = False
    """Whether the server has had no success since its last back-off. Such a server gets one task at a time."""
    recent_failures: int = 0
    """How many of its last tasks have failed."""
    slots: set[int] = field(default_factory=set)
    _lowest: int = 0
    """All slots below this one are taken."""

    @property
    def is_in_service(self) -> bool:
        """Whether the server takes tasks, now or when one of its tasks ends: it is neither closed nor out of
        service."""
        return self.capacity != 0 and not self.is_backed_off and not self.is_on_trial

    @property
    def free(self) -> int:
        """How many more tasks the server may take."""
        if self.is_backed_off:
            return 0
        return min(self.free_for_commands, max(1 - len(self.slots), 0)) if self.is_on_trial else self.free_for_commands

    @property
    def free_for_commands(self) -> int:
        """How many more commands for this server may start. They ignore its health."""
        return max((UNLIMITED if self.capacity is None else self.capacity) - len(self.slots), 0)

    @property
    def load(self) -> float:
        """The used share of the server's capacity. Recent failures count like running tasks, so that a server is not
        preferred because it fails its tasks at once."""
        return (len(self.slots) + self.recent_failures) / (self.capacity or UNLIMITED)

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
    """The servers of one provider during a claim. A heap finds the least loaded server: a claim usually only adds
    load."""

    def __init__(self) -> None:
        self.servers: list[ServerCapacity] = []
        self._by_address: dict[str, ServerCapacity] = {}
        self._heap: list[tuple[float, int, int]] | None = None

    def add(self, server: ServerCapacity) -> None:
        """Add a server."""
        self.servers.append(server)
        self._by_address[server.address] = server

    def find(self, address: str) -> ServerCapacity | None:
        """The server with this address. None if it is not in the pool."""
        return self._by_address.get(address)

    def give_back(self, address: str, slot: int) -> None:
        """Free a slot of a server."""
        self._by_address[address].give_back(slot)

    def discard_heap(self) -> None:
        """Discard the heap, because a server may have less load than before."""
        self._heap = None

    def choose(self, candidate: PermitSeeker, is_open: Callable[[ServerCapacity], bool]) -> ServerCapacity | None:
        """Choose an open server for the task: its target, or else the least loaded one, if possible not the server to
        avoid. A task that has blamed a server waits for another one while one is in service. Servers with equal load
        are chosen in rotation. None if no suitable server is open."""
        if candidate.target is not None:
            server = self.find(candidate.target)
            return server if server is not None and is_open(server) else None
        server = self._least_loaded(candidate.id, is_open)
        if server is None or server.address != candidate.avoid:
            return server
        others = [other for other in self.servers if other is not server]
        opened = [other for other in others if is_open(other)]
        if opened:
            return opened[min(_in_order(opened, candidate.id))[2]]
        return None if candidate.has_blamed and any(other.is_in_service for other in others) else server

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
    """The free permits of limits and servers, while a claim takes them for one task after the other."""

    def __init__(
        self,
        values: Mapping[str, int | None],
        servers: Iterable[ServerCapacity],
        held_permits: Iterable[HeldPermits],
        rates: Mapping[str, RateMeter] = NO_RATES,
    ) -> None:
        self._values = values
        self._rates = {name: replace(meter) for name, meter in rates.items()}
        """The rates of limits, charged with the tasks that were taken."""
        self._pools: dict[str, ServerPool] = defaultdict(ServerPool)
        for server in servers:
            server.begin()
            self._pools[server.provider].add(server)
        self._reserved: tuple[KindRequest, PermitSeeker, Grant] | None = None
        """The reserved task with its kind request, and the permits that are held for it. None if none are held."""
        self._above: dict[str, tuple[str, ...]] = {}
        self._used: Counter[str] = Counter()
        for held in held_permits:
            self._count(held)

    @classmethod
    def counted(
        cls,
        values: Mapping[str, int | None],
        in_use: Mapping[str, int],
        servers: Iterable[tuple[ServerCapacity, int]],
        rates: Mapping[str, RateMeter] = NO_RATES,
    ) -> Self:
        """A SharedCapacity made from the numbers of permits in use, for a caller that has no rows of running tasks."""
        listed = list(servers)
        made = cls(values, (server for server, _ in listed), (), rates)
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
        for name in self._names(limits, server):
            self._used[name] += number

    def _names(self, limits: tuple[str, ...], server: str | None) -> Collection[str]:
        """The limits whose permits a task on this server holds."""
        above = () if server is None else self._prefixes(server)
        # A name may occur twice: given twice, or held by name and as a prefix of the server. It is one permit.
        return {*limits, *above} if above or len(limits) > 1 else limits

    def rated(self, grant: Grant) -> list[str]:
        """The limits of a grant that have a rate. A start charges them."""
        return [name for name in self._names(grant.limits, grant.server) if name in self._rates] if self._rates else []

    def _charge(self, grant: Grant, units: int) -> None:
        for name in self.rated(grant):
            self._rates[name].charge(units)

    def _prefixes(self, address: str) -> tuple[str, ...]:
        """The limits that cover a server: their names are prefixes of its address."""
        above = self._above.get(address)
        if above is None:
            above = self._above[address] = tuple(name for name in self._values if covers(name, address))
        return above

    def _free(self, names: tuple[str, ...]) -> int:
        return min((self._remaining(name) for name in names), default=UNLIMITED)

    def _remaining(self, name: str) -> int:
        value = self._values.get(name)
        free = UNLIMITED if value is None else max(value - self._used[name], 0)
        meter = self._rates.get(name)
        return free if meter is None else min(free, meter.allowed)

    def most(self, kind_request: KindRequest) -> int:
        """How many tasks of the kind the count of the request and the free permits allow."""
        most = min(kind_request.count, self._free(kind_request.limits))
        if kind_request.provider is not None:
            servers = self._pools[kind_request.provider].servers
            most = min(most, sum(min(server.free, self._free(self._prefixes(server.address))) for server in servers))
        return most

    def open_to_commands(self, provider: str) -> list[str]:
        """The addresses of the provider's servers that can take a command: the server and every limit that covers it
        have a free permit. Commands for other servers need not be read."""
        return [server.address for server in self._pools[provider].servers if self._is_open_to_command(server)]

    def full(self, names: Iterable[str]) -> list[str]:
        """The limits of this list that have no free permit."""
        return [name for name in names if self._remaining(name) == 0]

    def deferred_for(self, kind_request: KindRequest) -> int:
        """For how many microseconds rates keep tasks of the kind from starting. 0 if no rate does."""
        if not self._rates:
            return 0
        by_name = self._rates_free_in(kind_request.limits)
        if kind_request.provider is None:
            return by_name
        servers = self._pools[kind_request.provider].servers
        above = (self._rates_free_in(self._prefixes(server.address)) for server in servers)
        return max(by_name, min(above, default=0))

    def _rates_free_in(self, names: Iterable[str]) -> int:
        """After how many microseconds all rates of these limits permit a start."""
        meters = (self._rates[name] for name in names if name in self._rates)
        return max((meter.free_at - meter.now for meter in meters), default=0)

    def full_above(self, address: str) -> list[str]:
        """The limits that cover this server and have no free permit."""
        return self.full(self._prefixes(address))

    def servers_for(self, provider: str, target: str | None) -> list[ServerCapacity]:
        """The servers of a provider that may run a task with this `target`. All of them if `target` is None."""
        servers = self._pools[provider].servers
        return servers if target is None else [server for server in servers if server.address == target]

    def has_permits(self, kind_request: KindRequest, candidate: PermitSeeker) -> bool:
        """Whether `take` would find permits for this task."""
        if self.full(kind_request.limits):
            return False
        return kind_request.provider is None or self._choose(kind_request.provider, kind_request, candidate) is not None

    def hold(self, kind_request: KindRequest, candidate: PermitSeeker) -> None:
        """Hold a permit of each limit and of a server for the reserved task, if all are free. After that only commands
        and urgent tasks, which precede the reserved task, may take them."""
        grant = self._take(kind_request, candidate)
        self._reserved = None if grant is None else (kind_request, candidate, grant)

    def take(self, kind_request: KindRequest, candidate: PermitSeeker) -> Grant | None:
        """Take a permit of every limit and of a server for this task. None, and nothing is taken, if one of them has no
        free permit. The reserved task gets the permits that are held for it."""
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
        self._charge(grant, -grant.units)
        if grant.provider is not None and grant.server is not None and grant.slot is not None:
            self._pools[grant.provider].give_back(grant.server, grant.slot)
        for pool in self._pools.values():  # a limit may cover servers of several pools
            pool.discard_heap()

    def _take(self, kind_request: KindRequest, candidate: PermitSeeker) -> Grant | None:
        if self.full(kind_request.limits):
            return None
        grant = Grant(kind_request.limits, units=candidate.units)
        if kind_request.provider is not None:
            server = self._choose(kind_request.provider, kind_request, candidate)
            if server is None:
                return None
            grant = Grant(
                kind_request.limits, kind_request.provider, server.address, server.take_slot(), candidate.units
            )
        self._use(grant.limits, grant.server)
        self._charge(grant, grant.units)
        return grant

    def _choose(self, provider: str, kind_request: KindRequest, candidate: PermitSeeker) -> ServerCapacity | None:
        """Choose a server. A command for one server gets it even if it is out of service, because commands repair
        servers."""
        is_for_one = kind_request.is_command and candidate.target is not None
        return self._pools[provider].choose(candidate, self._is_open_to_command if is_for_one else self._is_open)

    def _is_open(self, server: ServerCapacity) -> bool:
        return server.free > 0 and self._is_open_above(server)

    def _is_open_to_command(self, server: ServerCapacity) -> bool:
        return server.free_for_commands > 0 and self._is_open_above(server)

    def _is_open_above(self, server: ServerCapacity) -> bool:
        above = self._prefixes(server.address)
        return not above or self._free(above) > 0
