"""Finds shortages that keep tasks waiting although nodes have capacity: pools without servers, back-offs, closed
limits.

The app's code says which kinds need a named limit or a provider. Without the app, only shortages that the store knows
are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from synergon.engine import Engine
from synergon.explain.text import plural
from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.record import to_datetime
from synergon.options.addresses import covers
from synergon.task import AnyTask

Shortage = tuple[str, str]
"""The problem, and what to do about it."""

CHECK_ERRORS: Final = "check the errors of its last tasks"
WAITING_STATES: Final = frozenset({State.READY, State.WAITING})


async def find_shortages(engine: Engine, counts: Mapping[tuple[str, str, State], int]) -> list[Shortage]:
    """Find all shortages."""
    waiting: Counter[str] = Counter()
    for (_, kind, state), number in counts.items():
        if state in WAITING_STATES:
            waiting[kind] += number
    limits = await engine.limits()
    servers = [server for server in await engine.servers() if not server.is_removed]
    now = to_datetime(await engine._store.now())
    out = [server for server in servers if server.is_out]
    return [
        *_empty_pools(engine, servers, waiting),
        *(_out_of_service(server, now) for server in out),
        *_closed_limits(engine, limits, servers, waiting),
    ]


def _empty_pools(engine: Engine, servers: Sequence[ServerRecord], waiting: Mapping[str, int]) -> Iterator[Shortage]:
    """Pools that have no servers, or only closed ones."""
    names = {server.provider for server in servers} | set(engine._registry.providers)
    for name in sorted(names):
        pool = [server for server in servers if server.provider == name]
        if any(server.capacity != 0 for server in pool):
            continue
        kinds = [
            kind for kind, task_type in engine.kinds.items() if task_type.provider and task_type.provider.name == name
        ]
        tasks = _waiting_text(sum(waiting[kind] for kind in kinds if kind in waiting))
        problem = "all servers of provider {} are closed" if pool else "provider {} has no servers"
        yield problem.format(name) + tasks, f"`synergon servers set {name} ADDRESS=CAPACITY ...`"


def _out_of_service(server: ServerRecord, now: datetime) -> Shortage:
    name = f"server {server.address} of provider {server.provider}"
    if not server.is_suspended(now):
        return f"{name} is on trial: it gets one task at a time until one succeeds", CHECK_ERRORS
    again = "probes" if server.has_probe else "tries"
    return f"{name} is out of service: {server.failure_text}", f"{CHECK_ERRORS}; synergon {again} it again by itself"


def _closed_limits(
    engine: Engine, limits: Sequence[LimitRecord], servers: Sequence[ServerRecord], waiting: Mapping[str, int]
) -> Iterator[Shortage]:
    for limit in limits:
        if limit.value != 0:
            continue
        tasks = sum(
            number for kind, number in waiting.items() if _needs(limit.name, kind, engine.kinds.get(kind), servers)
        )
        if tasks:
            yield f"limit {limit.name} is closed{_waiting_text(tasks)}", f"`synergon limits set {limit.name} VALUE`"


def _needs(limit: str, kind: str, task_type: AnyTask | None, servers: Sequence[ServerRecord]) -> bool:
    """Whether no task of the kind can start while this limit is closed."""
    if limit in (f"kind:{kind}", f"key:{kind}"):
        return True
    if task_type is None:
        return False
    if task_type.provider is None:
        return limit in task_type.limits
    pool = [server for server in servers if server.provider == task_type.provider.name]
    return limit in task_type.limits or (bool(pool) and all(covers(limit, server.address) for server in pool))


def _waiting_text(number: int) -> str:
    if not number:
        return ""
    return f", and {plural(number, 'task')} {'waits' if number == 1 else 'wait'} for it"
