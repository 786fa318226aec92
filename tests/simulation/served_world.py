"""A world whose tasks run on servers that break and are repaired: some are tried with tasks, some are probed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
from tests.simulation.auditor import READING, Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.process import Process
from tests.simulation.task_functions import RETRY, Script, perform
from tests.simulation.virtual_loop import OWNER
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import UNTIL, Workload
from tests.simulation.world import World, at_once

from synergon import Context, Engine, Health, Server, ServerFailed
from synergon.call import Call
from synergon.model.claims import Claim, ClaimRequest
from synergon.model.lifecycle import State
from synergon.model.limits import ClaimedProbes

CAPACITY: Final = 3
ServerName = tuple[str, str]

engine: Final = Engine("memory://", name="served")


async def probe(server: Server) -> bool:
    """Ask the server how it is."""
    world: ServedWorld = OWNER.get().world  # type: ignore[union-attr]
    await asyncio.sleep(0.1)
    return server.address not in world.broken


TRIED: Final = Health(failures=2, backoff=0.5, cap=2, rate=0.5, window=6)
PROBED: Final = Health(failures=2, backoff=0.5, cap=2, rate=0.5, window=6, probe=probe, probe_timeout=1)
tried_pool: Final = engine.provider("tried", servers=["a", "b"], capacity=CAPACITY, health=TRIED)
probed_pool: Final = engine.provider("probed", servers=["c", "d"], capacity=CAPACITY, health=PROBED)
any_pool: Final = engine.provider("any", servers=["e", "f"], capacity=CAPACITY, health=None)


async def _serve(script: Script, ctx: Context, server: Server) -> int:
    world: ServedWorld = OWNER.get().world  # type: ignore[union-attr]
    if server.address in world.broken:
        raise ServerFailed("no answer")
    return await perform(script, ctx)


@tried_pool.task(retry=RETRY, timeout=4)
async def tried(script: Script, ctx: Context, server: Server) -> int:
    """On servers that are tried with one task."""
    return await _serve(script, ctx, server)


@probed_pool.task(retry=RETRY, timeout=4)
async def probed(script: Script, ctx: Context, server: Server) -> int:
    """On servers that are probed."""
    return await _serve(script, ctx, server)


@any_pool.task(timeout=4)
async def unserved(script: Script, ctx: Context, server: Server) -> int:
    """Fails on every server."""
    raise ServerFailed(f"{server} never answers")


class Condition(NamedTuple):
    """The health of a server in its row."""

    failures: int
    recent: int
    backoffs: int
    until: int | None


class ServedWorld(World):
    """The faults of every world, and servers that break."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"served {seed}"))
        self.kinds = engine.kinds
        self.broken: set[str] = set()

    def make_auditor(self) -> Auditor:
        return ServerAuditor(self, self.tables)

    def populate(self) -> None:
        at_once(self.store.declare(*engine._registry.declarations()))
        super().populate()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [ServerPatience(self).run(), self._break(), self.live_through(Chaos(self), ServedWorkload(self))]

    async def _break(self) -> None:
        """Break servers and repair them; in the end all are well."""
        while self.loop.time() < UNTIL:
            await asyncio.sleep(self.chances.expovariate(1.0))
            address = self.chances.choice(("a", "b", "c", "d"))
            self.broken ^= {address}
            self.log(f"server {address} {'breaks' if address in self.broken else 'is repaired'}")
        self.broken.clear()

    def start_process(self) -> None:
        pid = self.next_pid()
        settings = replace(
            engine.settings,
            name=f"node-{pid}",
            concurrency=self.chances.choice((2, 4, 8)),
            child_processes=6,
            lease=6.0,
        )
        self.processes.append(Process(self, pid, settings, random.Random(self.chances.random())))

    def health(self) -> dict[ServerName, Condition]:
        """The health of all servers."""
        return {
            (name, address): Condition(server.failures, server.recent, server.backoffs, server.backs_off_until)
            for name, provider in self.tables.providers.items()
            for address, server in provider.servers.items()
        }

    def on_server(self) -> Counter[ServerName]:
        """How many tasks run on each server."""
        return Counter(
            (row.provider, row.server)
            for row in self.tables.rows.values()
            if row.state is State.RUNNING
            and row.provider is not None
            and row.server is not None
            and row.slot is not None
        )


class ServedWorkload(Workload):
    """Tasks of all kinds."""

    def _new_call(self) -> Call[Any]:
        kind = self._chances.choice(("tried", "tried", "probed", "probed", "unserved"))
        script = msgspec.structs.replace(self._script(), children=0)
        call = engine.call(kind, script=script)
        options = self._options()
        return call.with_options(**options) if options else call


class ServerAuditor(Auditor):
    """Servers that are out of service get no task, one at a time on trial; one node at a time probes them."""

    _world: ServedWorld

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._health: dict[ServerName, Condition] = {}
        self._probed_until: dict[ServerName, int] = {}
        """Until when each claimed probe may run."""

    def applied(self, process: Process, name: str, args: tuple[Any, ...], answer: Any, *, is_done: bool) -> None:
        super().applied(process, name, args, answer, is_done=is_done)
        if name in READING:
            return
        before, self._health = self._health, self._world.health()
        for server, health in self._health.items():
            old = before.get(server, health)
            if health != old:
                self._check_health(name, server, old, args)

    def _check_health(self, name: str, server: ServerName, old: Condition, args: tuple[Any, ...]) -> None:
        match name:
            case "finish" if old.until is None or (old.until <= self.now and server[0] != "probed"):
                return
            case "claim_probes" if old.until is not None and old.until <= self.now and server[0] == "probed":
                return
            case "finish_probes" if any(
                (result.provider, result.address, result.until) == (*server, old.until) for result in args[0]
            ):
                return
        self._world.fail(f"{name} changed the health of {server} from {old}")

    def _check_claim_probes(self, process: Process, args: Any, claimed: ClaimedProbes, *_: Any) -> None:
        for one in claimed.probes:
            server = (one.provider, one.address)
            if self._probed_until.get(server, 0) > self.now:
                self._world.fail(f"{process} probes {server}, which another node probes")
            self._probed_until[server] = self.now + one.timeout

    def _check_finish_probes(self, process: Process, args: Any, *_: Any) -> None:
        for result in args[0]:
            self._probed_until.pop((result.provider, result.address), None)

    def _check_claim(
        self,
        process: Process,
        args: tuple[ClaimRequest],
        claims: list[Claim],
        changed: dict[int, Seen | None],
        before: dict[int, Seen],
    ) -> None:
        """Which server a task gets, and in which order tasks do, is looked at elsewhere."""
        self.before_claim = before
        if self.is_over(args[0].node_id):
            self._world.fail(f"{process} claims as node {args[0].node_id} without a lease")
        running = self._world.on_server()
        for claim in claims:
            provider = self._world.kinds[claim.kind].provider
            assert provider is not None
            assert claim.server is not None
            server = (provider.name, claim.server)
            until = self._health.get(server, Condition(0, 0, 0, None)).until
            if until is not None and (until > self.now or provider.name == "probed"):
                self.fail(claim.id, f"it was given to {server}, which is out of service")
            if running[server] > (CAPACITY if until is None else 1):
                self.fail(claim.id, f"{server} has {running[server]} tasks")


class ServerPatience(Patience):
    """A task whose servers are out of service or full waits for something."""

    _world: ServedWorld

    def _who_is_free(self, task_id: int) -> Process | None:
        world = self._world
        provider = world.kinds[world.auditor.row(task_id).task.kind].provider
        assert provider is not None
        running = world.on_server()
        is_open = any(
            health.until is None and running[server] < CAPACITY
            for server, health in world.health().items()
            if server[0] == provider.name
        )
        return super()._who_is_free(task_id) if is_open else None
