"""Why tasks may wait though nodes have room: pools without servers, servers that rest, limits that are closed.

Which kinds need a limit by name or a provider is in the app's code; without it only what the store knows is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from synergon.cli.output import plural
from synergon.engine import Engine
from synergon.model.lifecycle import State
from synergon.model.limits import LimitRecord, ServerRecord
from synergon.model.record import to_datetime
from synergon.options.addresses import covers
from synergon.task import AnyTask

Shortage = tuple[str, str]
"""The problem, and what to do about it."""

HELD: Final = frozenset({State.READY, State.WAITING})


async def find_shortages(engine: Engine, counts: Mapping[tuple[str, str, State], int]) -> list[Shortage]:
    """All of them."""
    held: Counter[str] = Counter()
    for (_, kind, state), number in counts.items():
        if state in HELD:
            held[kind] += number
    limits = await engine.limits()
    servers = [server for server in await engine.servers() if not server.is_removed]
    now = to_datetime(await engine.store.now())
    resting = [server for server in servers if server.resting_until is not None and server.resting_until > now]
    return [
        *_empty_pools(engine, servers, held),
        *(_resting(server) for server in resting),
        *_closed_limits(engine, limits, servers, held),
    ]


def _empty_pools(engine: Engine, servers: Sequence[ServerRecord], held: Mapping[str, int]) -> Iterator[Shortage]:
    """A pool is empty if nobody put a server into it, or if all of them are closed."""
    names = {server.provider for server in servers} | set(engine.registry.providers)
    for name in sorted(names):
        pool = [server for server in servers if server.provider == name]
        if any(server.capacity != 0 for server in pool):
            continue
        kinds = [
            kind for kind, task_type in engine.kinds.items() if task_type.provider and task_type.provider.name == name
        ]
        waits = _wait(sum(held[kind] for kind in kinds if kind in held))
        what = "all servers of provider {} are closed" if pool else "provider {} has no servers"
        yield what.format(name) + waits, f"`synergon servers set {name} ADDRESS=CAPACITY ...`"


def _resting(server: ServerRecord) -> Shortage:
    times = plural(server.failures, "failure")
    return (
        f"server {server.address} of provider {server.provider} rests after {times} in a row",
        "look at the errors of its last tasks; it is tried again by itself",
    )


def _closed_limits(
    engine: Engine, limits: Sequence[LimitRecord], servers: Sequence[ServerRecord], held: Mapping[str, int]
) -> Iterator[Shortage]:
    for limit in limits:
        if limit.value != 0:
            continue
        waiting = sum(
            number for kind, number in held.items() if _needs(limit.name, kind, engine.kinds.get(kind), servers)
        )
        if waiting:
            yield f"limit {limit.name} is closed{_wait(waiting)}", f"`synergon limits set {limit.name} VALUE`"


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


def _wait(number: int) -> str:
    if not number:
        return ""
    return f", and {plural(number, 'task')} {'waits' if number == 1 else 'wait'} for it"
