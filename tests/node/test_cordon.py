"""A cordoned node starts nothing, by any path, whatever it has heard, and comes back cordoned."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, a_row, row_of, until, until_state

from synergon import Engine, State
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.operator_actions import NewAction, Verb
from synergon.model.requirements import PROCESS, UNIT, WHOLE_NODE
from synergon.node.node import Node
from synergon.peering.wire import message

TRIES: Final = 100
TOGETHER: Final = 20


async def order_without_a_word(engine: Engine, verb: Verb, node_id: str) -> None:
    """Have it written down, and tell nobody."""
    await engine._store.act(NewAction(verb=verb, subject=node_id, who="ada"))


class Paths:
    """Every way by which a task could come to start here."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ran: Counter[str] = Counter()
        self.dead = 0
        pool = engine.provider("pool", servers={"one": None})

        @engine.task
        async def work() -> None:
            self.ran["work"] += 1

        @engine.task(urgent=True)
        async def hurry() -> None:
            self.ran["hurry"] += 1

        @pool.task
        async def serve() -> None:
            self.ran["serve"] += 1

        @pool.command
        async def obey() -> None:
            self.ran["obey"] += 1

        @engine.task
        async def from_idle() -> None:
            self.ran["from_idle"] += 1

        @engine.when_idle(every=0.001)
        async def idle() -> None:
            self.ran["idle"] += 1

        self.work, self.hurry, self.serve, self.command = work, hurry, serve, obey
        self.ways: dict[str, Callable[[Node], Awaitable[None]]] = {
            "adds": self._add,
            "urgent adds": self._hurry,
            "servers": self._serve,
            "commands": self._command,
            "hints": self._hint,
            "retries": self._retry,
            "due tasks": self._due,
            "recovery": self._recover,
            "sweeps": self._sweep,
        }

    async def _add(self, _: Node) -> None:
        await self.work.enqueue()

    async def _hurry(self, _: Node) -> None:
        await self.hurry.enqueue()

    async def _serve(self, _: Node) -> None:
        await self.serve.enqueue()

    async def _command(self, _: Node) -> None:
        await self.command.enqueue()

    async def _hint(self, node: Node) -> None:
        node.handle_hints(message(new={"work": 1, "hurry": 1}, freed=("provider:pool",), due=True, control=True))

    async def _retry(self, _: Node) -> None:
        handle = await self.work.enqueue()
        await self.engine.cancel(handle.id)
        await self.engine.retry(handle.id)

    async def _due(self, _: Node) -> None:
        await self.work.with_options(delay=0.0001).enqueue()

    async def _recover(self, node: Node) -> None:
        """A neighbour takes a task and dies."""
        store = self.engine._store
        me, self.dead = await row_of(self.engine, node), self.dead + 1
        dead = a_row(f"dead-{self.dead}", *me.kinds)
        await store.register(dead)
        empty = {PROCESS: UNIT, WHOLE_NODE: UNIT}  # it may be a suspect that a neighbour has left before
        work = KindRequest(kind="work", count=1)
        request = ClaimRequest(node_id=dead.id, kinds=(work,), limit=1, totals=empty, free=empty)
        claims = await store.claim(request)
        while not claims:  # other neighbours were quicker each time
            claims = await store.claim(request)
        await store.unregister(dead.id)
        await node.reaper.reap()

    async def _sweep(self, node: Node) -> None:
        node.check_everything()


async def test_a_cordoned_node_starts_nothing_by_any_path_in_a_hundred_tries_of_each(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)
    paths = Paths(engine)
    async with engine.worker() as node:
        await engine.cordon(node.id)
        await until(lambda: node.cordon.is_cordoned)
        paths.ran.clear()
        for name, way in paths.ways.items():
            for _ in range(0, TRIES, TOGETHER):
                await asyncio.gather(*(way(node) for _ in range(TOGETHER)))
            await until(lambda: not node.scheduler._event.is_set())
            assert paths.ran.total() == 0, f"something was started by {name}"
            assert not node.runner.running, f"something was claimed by {name}"
        taken = [task for task in await engine.tasks(limit=10_000) if task.node_id == node.id]
        assert taken == []
        await engine.uncordon(node.id)
        await until(lambda: not_one_is_left(engine), 60)
        await until(lambda: paths.ran["idle"] > 0)
    assert (paths.ran["hurry"], paths.ran["serve"], paths.ran["obey"]) == (TRIES, TRIES, TRIES)
    assert paths.ran["work"] >= 2 * TRIES


async def not_one_is_left(engine: Engine) -> bool:
    counts = await engine.counts()
    return not any(count for state, count in counts.items() if not state.is_final)


async def test_a_node_that_has_not_heard_of_it_starts_nothing_either(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    ran: list[int] = []

    @engine.task
    async def work(number: int) -> None:
        ran.append(number)

    async with engine.worker() as node:
        await until(lambda: node.scheduler.is_idle(None))
        await order_without_a_word(engine, "cordon", node.id)
        for number in range(TRIES):
            node.scheduler.is_cordoned = False
            await work.enqueue(number)
            await until(lambda: node.cordon.is_cordoned)
        assert ran == []
        await until(lambda: all_are_obeyed(engine, "cordoned"))
        await engine.uncordon(node.id)
        await until(lambda: len(ran) == TRIES)


async def all_are_obeyed(engine: Engine, *outcomes: str) -> bool:
    """Newest first."""
    return [order.outcome for order in await engine.audit()] == list(outcomes)


async def test_a_claim_that_was_late_does_not_cordon_a_node_for_ever(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def work() -> str:
        return "done"

    async with engine.worker() as node:
        node.cordon.found_cordoned()  # so says a claim that had begun before somebody took the order back
        assert await (await work.enqueue()).result(timeout=PATIENCE_SECONDS) == "done"


@pytest.mark.usefixtures("quick_heartbeat")
@pytest.mark.parametrize("has_heard", [True, False])
async def test_a_node_that_loses_its_lease_while_cordoned_comes_back_cordoned(
    new_engine: NewEngine, url: str, has_heard: bool
) -> None:
    engine = new_engine(url)
    ran: list[int] = []

    @engine.task
    async def work() -> None:
        ran.append(1)

    async with engine.worker() as node:
        first = node.id
        await order_without_a_word(engine, "cordon", first)
        if has_heard:
            node.check_everything()
            await until(lambda: node.cordon.is_cordoned)
        await engine._store.unregister(first)  # somebody has declared it dead
        await until(lambda: node.id != first and node.scheduler.is_open)
        assert node.cordon.is_cordoned
        assert (await row_of(engine, node)).is_cordoned
        handle = await work.enqueue()
        node.check_everything()
        await asyncio.sleep(0.05)
        assert ran == []
        await engine.uncordon(node.id)
        await until_state(handle, State.SUCCEEDED)
