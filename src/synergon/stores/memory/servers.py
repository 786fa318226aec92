"""Limits and servers: what was declared, what operators set, and how the servers fare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.limits import LimitRecord, NewLimit, NewProvider, NewRate, NewServer, ServerRecord
from synergon.model.outcomes import ErrorRecord, FencedOutcome
from synergon.model.record import to_datetime
from synergon.options.addresses import covers
from synergon.stores.memory.entries import Limit, Provider, Server
from synergon.stores.memory.key_queues import balance_kind
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables
from synergon.stores.rules.shared_capacity import HeldPermits, ServerCapacity, SharedCapacity

LONGEST_DOUBLING = 40
"""Twice as long so often is longer than any cap, and no number to be afraid of."""

# ---------------------------------------------------------------- what the code and operators say


def declare(tables: Tables, limits: Sequence[NewLimit], providers: Sequence[NewProvider], now: int) -> None:
    """Take over what a declaration says otherwise than the one before it."""
    for limit in limits:
        _declare_limit(tables, limit, now)
    for provider in providers:
        _declare_provider(tables, provider, now)


def _declare_limit(tables: Tables, declared: NewLimit, now: int) -> None:
    known = tables.limits.get(declared.name)
    if known is None or known.declared != declared:
        tables.limits[declared.name] = Limit(declared, declared.value, declared.rate)
        _apply_limit(tables, declared.name, now)


def _declare_provider(tables: Tables, declared: NewProvider, now: int) -> None:
    declared = msgspec.structs.replace(declared, servers=tuple(sorted(declared.servers, key=lambda one: one.address)))
    known = tables.providers.get(declared.name)
    if known is None:
        tables.providers[declared.name] = Provider(declared)
    elif known.declared == declared:
        return
    else:
        known.declared = declared
    set_servers(tables, declared.name, declared.servers, now)


def set_limit(tables: Tables, name: str, value: int | None, now: int) -> bool:
    """Change what the limit is worth; False: there is none of that name."""
    limit = tables.limits.get(name)
    if limit is None:
        return False
    limit.value = value
    _apply_limit(tables, name, now)
    return True


def _apply_limit(tables: Tables, name: str, now: int) -> None:
    what, _, kind = name.partition(":")
    if what == "key":
        balance_kind(tables, kind, now)


def set_servers(tables: Tables, name: str, servers: Sequence[NewServer], now: int) -> bool:
    """Change the pool; False: there is no provider of that name."""
    provider = tables.providers.get(name)
    if provider is None:
        return False
    before = provider.servers
    provider.servers = {}
    for server in sorted(servers, key=lambda one: one.address):
        entry = before.get(server.address) or Server(server.capacity)
        entry.capacity = server.capacity
        provider.servers[server.address] = entry
    if before.keys() - provider.servers.keys():
        _fail_commands(tables, name, provider, now)
    return True


def _fail_commands(tables: Tables, name: str, provider: Provider, now: int) -> None:
    """End the commands that wait for a server which is gone."""
    for row in list(tables.commands.values()):
        target = row.task.target
        is_lost = row.task.provider == name and target is not None and target not in provider.servers
        if is_lost and row.state not in FINAL and row.state is not State.RUNNING:
            message = f"{target} is no server of {name} any more, so the command was not given to it"
            row.add_error(ErrorRecord(attempt=row.attempts, type="ServerRemoved", message=message), now)
            tables.end(row, State.FAILED, Reason.ERROR, now)


# ---------------------------------------------------------------- who gets a place


def allotment(tables: Tables, now: int) -> SharedCapacity:
    """The places that are left."""
    values = {name: limit.value for name, limit in tables.limits.items()}
    servers = [
        _pooled(name, provider, address, server, now)
        for name, provider in tables.providers.items()
        for address, server in provider.servers.items()
    ]
    return SharedCapacity(values, servers, _held_permits(tables))


def _pooled(name: str, provider: Provider, address: str, server: Server, now: int) -> ServerCapacity:
    is_backed_off = server.is_backed_off(now)
    backoff_after = provider.declared.backoff_after
    is_on_trial = not is_backed_off and backoff_after is not None and server.failures >= backoff_after
    return ServerCapacity(name, address, server.capacity, is_backed_off=is_backed_off, is_on_trial=is_on_trial)


def _held_permits(tables: Tables) -> Iterable[HeldPermits]:
    return [HeldPermits(row.holds or (), row.provider, _server_of(row), row.slot) for row in tables.held.values()]


def _server_of(row: Row) -> str | None:
    return None if row.provider is None else row.server  # without a provider it is only the last server


# ---------------------------------------------------------------- health


def judge(tables: Tables, fenced: FencedOutcome, now: int) -> None:
    """Count an attempt for the health of its server."""
    if fenced.server is None:
        return
    name, address = fenced.server
    provider = tables.providers.get(name)
    server = None if provider is None else provider.servers.get(address)
    if provider is None or server is None:
        return
    if fenced.is_server_well:
        server.failures = server.backoffs = 0
        server.backs_off_until = None
    elif not server.is_backed_off(now):  # what ran when the rest began must not make it longer
        _count_failure(provider.declared, server, now)


def _count_failure(rules: NewProvider, server: Server, now: int) -> None:
    server.failures += 1
    if rules.backoff_after is not None and server.failures >= rules.backoff_after:
        backoff = min(rules.backoff_first << min(server.backoffs, LONGEST_DOUBLING), rules.backoff_cap)
        server.backs_off_until = now + backoff
        server.backoffs += 1


def next_backoff_end(tables: Tables, now: int) -> int | None:
    """When the first server that rests may be tried again."""
    moments = (server.backs_off_until for provider in tables.providers.values() for server in provider.servers.values())
    return min((moment for moment in moments if moment is not None and moment > now), default=None)


# ---------------------------------------------------------------- looking


def limits(tables: Tables) -> list[LimitRecord]:
    """All limits, by name."""
    held = _held(tables)
    return [_limit_record(tables, name, limit, held[name]) for name, limit in sorted(tables.limits.items())]


def _held(tables: Tables) -> Counter[str]:
    held: Counter[str] = Counter()
    for row in tables.held.values():
        server = _server_of(row)
        above = () if server is None else tuple(name for name in tables.limits if covers(name, server))
        held.update({*(row.holds or ()), *above})
    return held


def _limit_record(tables: Tables, name: str, limit: Limit, held: int) -> LimitRecord:
    rate: NewRate | None = limit.rate
    what, _, kind = name.partition(":")
    if what != "key":
        return LimitRecord(name=name, value=limit.value, in_use=held, rate=rate)
    key_queues = tables.key_queues_of(kind)
    running, waiting = (
        sum(key_queue.running for key_queue in key_queues),
        sum(key_queue.waiting_count for key_queue in key_queues),
    )
    return LimitRecord(name=name, value=limit.value, in_use=running, waiting=waiting, rate=rate)


def servers(tables: Tables) -> list[ServerRecord]:
    """All servers that are in a pool or still have work, by provider and address."""
    in_use = Counter(
        (row.provider, row.server) for row in tables.held.values() if row.provider is not None and row.server
    )
    found = {
        (name, address): _server_record(name, address, server, in_use[name, address])
        for name, provider in tables.providers.items()
        for address, server in provider.servers.items()
    }
    for (name, address), number in in_use.items():
        if (name, address) not in found:
            found[name, address] = ServerRecord(
                provider=name, address=address, capacity=0, in_use=number, is_removed=True
            )
    return [found[position] for position in sorted(found)]


def _server_record(name: str, address: str, server: Server, in_use: int) -> ServerRecord:
    return ServerRecord(
        provider=name,
        address=address,
        capacity=server.capacity,
        in_use=in_use,
        failures=server.failures,
        backs_off_until=None if server.backs_off_until is None else to_datetime(server.backs_off_until),
    )
