"""What can be done to an arena, and a plan of it: the same seed gives the same deeds in the same order."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.chaos.arena import Arena
from tests.chaos.databases import PostgresDatabase, PostgresServer, Shutdown, SqliteDatabase
from tests.chaos.faulty_proxies import Manner


@dataclass(frozen=True, slots=True)
class Deed:
    """One fault: what, to whom, for how long, and how long after the one before."""

    after: float
    name: str
    place: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.name}, node {self.place}, {self.seconds:.1f} s"


Fault = Callable[[Arena, Deed], Awaitable[None]]


# ------------------------------------------------------------ nodes


async def kill_node(arena: Arena, deed: Deed) -> None:
    arena.kill(deed.place)


async def kill_node_that_nobody_sees(arena: Arena, deed: Deed) -> None:
    """Only its lease tells that it is dead."""
    await asyncio.to_thread(arena.database.hide_process, arena.nodes[deed.place].pid)
    arena.kill(deed.place)


async def freeze_node(arena: Arena, deed: Deed) -> None:
    """Sometimes past its lease, sometimes not."""
    async with arena.frozen(deed.place):
        await asyncio.sleep(deed.seconds)


async def stop_node_in_order(arena: Arena, deed: Deed) -> None:
    """As a deploy does."""
    node = arena.nodes[deed.place]
    if node.exit_code is None:
        node.killed_at = time.monotonic()
        node.send(signal.SIGTERM)


async def kill_producer(arena: Arena, deed: Deed) -> None:
    arena.producers[-1].kill()
    arena.start_producer(len(arena.producers))


# ------------------------------------------------------------ databases


def restart_postgres(how: Shutdown) -> Fault:
    """Down for a while, then up again."""

    async def restart(arena: Arena, deed: Deed) -> None:
        server = _server(arena)
        async with arena.outage():
            await asyncio.to_thread(server.stop, how)
            await asyncio.sleep(deed.seconds / 2)
            await asyncio.to_thread(server.start)

    return restart


async def cut_connections(arena: Arena, deed: Deed) -> None:
    async with arena.outage():
        await asyncio.to_thread(_server(arena).terminate_backends)


async def make_read_only(arena: Arena, deed: Deed) -> None:
    async with arena.outage():
        with _server(arena).read_only():
            await asyncio.sleep(deed.seconds)


async def lock_file(arena: Arena, deed: Deed) -> None:
    database = arena.database
    assert isinstance(database, SqliteDatabase)
    async with arena.outage():
        locking = database.locked()
        await asyncio.to_thread(locking.__enter__)
        await asyncio.sleep(deed.seconds)
        await asyncio.to_thread(locking.__exit__, None, None, None)


def _server(arena: Arena) -> PostgresServer:
    assert isinstance(arena.database, PostgresDatabase)
    return arena.database.server


# ------------------------------------------------------------ peers


def estrange_peer(manner: Manner) -> Fault:
    """It meets its callers like this for a while, and is itself again."""

    async def estrange(arena: Arena, deed: Deed) -> None:
        door = arena.doors[deed.place]
        door.become(manner)
        await asyncio.sleep(deed.seconds)
        door.become(Manner.OPEN)

    return estrange


# ------------------------------------------------------------ the plan

EVERYWHERE: Final[dict[str, Fault]] = {
    "kill a node": kill_node,
    "kill a node that nobody sees": kill_node_that_nobody_sees,
    "freeze a node": freeze_node,
    "stop a node in order": stop_node_in_order,
    "kill the producer": kill_producer,
    **{f"a peer {manner}": estrange_peer(manner) for manner in Manner if manner is not Manner.OPEN},
}
ON_POSTGRES: Final[dict[str, Fault]] = {
    "restart PostgreSQL (fast)": restart_postgres("fast"),
    "restart PostgreSQL (immediate)": restart_postgres("immediate"),
    "cut all connections": cut_connections,
    "read-only": make_read_only,
}
ON_SQLITE: Final[dict[str, Fault]] = {"lock the file": lock_file}


def faults_of(database: object) -> dict[str, Fault]:
    """What can be done to an arena with this database."""
    return {**EVERYWHERE, **(ON_SQLITE if isinstance(database, SqliteDatabase) else ON_POSTGRES)}


def plan(seed: int, names: list[str], *, seconds: float, places: int, lease: float) -> Iterator[Deed]:
    """Deeds for so long."""
    chance, at = random.Random(seed), 0.0
    while at < seconds:
        after = chance.uniform(0.5, 4.0)
        at += after
        name = chance.choice([*names, "kill a node", "kill a node that nobody sees", "freeze a node"])
        yield Deed(
            after, name, chance.randrange(places), chance.choice([0.3, 0.6, 1.5]) * lease * chance.uniform(0.7, 1.3)
        )


class Tormentor:
    """Does the deeds of a plan, several at once if they take long; but one at a time to the database and to a node."""

    def __init__(self, arena: Arena, say: Callable[[str], None] = print) -> None:
        self.deeds: Counter[str] = Counter()
        self._arena = arena
        self._say = say
        self._faults = faults_of(arena.database)
        self._locks: dict[object, asyncio.Lock] = {}
        self._began = time.monotonic()

    async def carry_out(self, deeds: Iterator[Deed]) -> None:
        """All of them, until the last is over."""
        async with asyncio.TaskGroup() as group:
            for deed in deeds:
                await asyncio.sleep(deed.after)
                group.create_task(self._do(deed))

    async def _do(self, deed: Deed) -> None:
        about_database = deed.name in ON_POSTGRES or deed.name in ON_SQLITE
        async with self._locks.setdefault(None if about_database else deed.place, asyncio.Lock()):
            if not about_database and self._arena.nodes[deed.place].exit_code is not None:
                return
            self.deeds[deed.name] += 1
            self._say(f"[{time.monotonic() - self._began:7.1f} s] {deed}")
            try:
                await self._faults[deed.name](self._arena, deed)
            except OSError as error:
                self._say(f"    could not be done: {error}")
