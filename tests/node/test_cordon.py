"""A cordoned node starts nothing, by any path; one that drains or restarts ends when nothing runs there."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from msgspec.structs import replace
from tests.conftest import NewEngine
from tests.node import process_bodies
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_bodies import on
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, until, until_state

from synergon import Context, Engine, Handle, NodeRecord, OptionError, State
from synergon.control_records import NewOrder, Verb
from synergon.node.node import Node
from synergon.node.presence import RESTART_EXIT_CODE
from synergon.node_records import NewNode
from synergon.peering.wire import message
from synergon.records import ClaimRequest, Room
from synergon.this_process import this_process

TRIES: Final = 100
TOGETHER: Final = 20
BIG_LEASE: Final = 3600
"""With this one the next heartbeat is ten minutes away."""


async def order_without_a_word(engine: Engine, verb: Verb, node_id: str) -> None:
    """Have it written down, and tell nobody."""
    await engine.store.order(NewOrder(verb=verb, subject=node_id, who="ada"))


async def row_of(engine: Engine, node: Node) -> NodeRecord:
    return next(record for record in await engine.nodes() if record.id == node.id)


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
        node.heard(message(new={"work": 1, "hurry": 1}, freed=("provider:pool",), due=True, control=True))

    async def _retry(self, _: Node) -> None:
        handle = await self.work.enqueue()
        await self.engine.cancel(handle.id)
        await self.engine.retry(handle.id)

    async def _due(self, _: Node) -> None:
        await self.work.with_options(delay=0.0001).enqueue()

    async def _recover(self, node: Node) -> None:
        """A neighbour takes a task and dies."""
        store = self.engine.store
        me, self.dead = await row_of(self.engine, node), self.dead + 1
        dead = NewNode(
            id=f"dead-{self.dead}",
            name="dead",
            process=me.process,
            kinds=me.kinds,
            queues=None,
            concurrency=1,
            lease=60_000_000,
            version="0",
        )
        await store.register(dead)
        claims = await store.claim(ClaimRequest(node_id=dead.id, rooms=(Room(kind="work", count=1),), limit=1))
        assert len(claims) == 1
        await store.unregister(dead.id)
        await node.reaper.reap()

    async def _sweep(self, node: Node) -> None:
        node.look_everywhere()


async def test_a_cordoned_node_starts_nothing_by_any_path_in_a_hundred_tries_of_each(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)
    paths = Paths(engine)
    async with engine.worker() as node:
        await engine.cordon(node.id)
        await until(lambda: node.presence.is_cordoned)
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
    assert (paths.ran["hurry"], paths.ran["serve"], paths.ran["obey"]) == (TRIES, TRIES, TRIES)
    assert paths.ran["work"] >= 2 * TRIES
    assert paths.ran["idle"] > 0


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
        await until(lambda: node.scheduler.is_at_rest(None))
        await order_without_a_word(engine, "cordon", node.id)
        for number in range(TRIES):
            node.scheduler.is_cordoned = False
            await work.enqueue(number)
            await until(lambda: node.presence.is_cordoned)
        assert ran == []
        await until(lambda: all_are_obeyed(engine, "cordoned"))
        await engine.uncordon(node.id)
        await until(lambda: len(ran) == TRIES)


async def all_are_obeyed(engine: Engine, *outcomes: str) -> bool:
    """Newest first."""
    return [order.outcome for order in await engine.orders()] == list(outcomes)


async def test_a_claim_that_was_late_does_not_cordon_a_node_for_ever(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def work() -> str:
        return "done"

    async with engine.worker() as node:
        node.presence.found_cordoned()  # so says a claim that had begun before somebody took the order back
        assert await (await work.enqueue()).result(timeout=PATIENCE_SECONDS) == "done"


@pytest.mark.parametrize(("verb", "code"), [("drain", 0), ("restart", RESTART_EXIT_CODE)])
async def test_a_node_ends_when_nothing_runs_there_and_says_how(
    new_engine: NewEngine, url: str, verb: Verb, code: int
) -> None:
    engine, operator = new_engine(url, sweep=0.05), new_engine(url)
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "held"

    async with operator:
        running = asyncio.create_task(engine.run(grace=0.01))  # which is not how long it waits for running tasks
        (handle,) = await operator.enqueue([operator.call("hold")])
        await gate.until_reached()
        (record,) = await operator.nodes()
        await (operator.drain if verb == "drain" else operator.restart)(record.id)
        await until(lambda: leaving_of(operator, verb))
        (later,) = await operator.enqueue([operator.call("hold")])
        await asyncio.sleep(0.05)
        assert not running.done()
        gate.open()
        assert await asyncio.wait_for(running, PATIENCE_SECONDS) == code
        assert await handle.result(timeout=PATIENCE_SECONDS) == "held"
        assert (await later.status()).claim_no == 0
        assert await operator.nodes() == []
        assert [order.outcome for order in await operator.orders()] == [f"{verb_word(verb)} when nothing runs there"]


def verb_word(verb: Verb) -> str:
    return {"drain": "ends", "restart": "restarts"}[verb]


async def leaving_of(engine: Engine, verb: str) -> bool:
    (record,) = await engine.nodes()
    return record.is_cordoned and record.state.is_cordoned and record.state.leaving == verb


async def test_an_idle_node_that_is_told_to_drain_ends_at_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def work() -> None: ...

    async with engine:
        async with engine.worker() as node:
            await engine.drain(node.id)
            await asyncio.wait_for(node.stopped(), PATIENCE_SECONDS)
            await until(lambda: engine.node is None)
        assert await engine.nodes() == []


async def test_uncordon_calls_a_drain_off(new_engine: NewEngine, memory_url: str) -> None:
    engine, gate = new_engine(memory_url), Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "held"

    async with engine.worker() as node:
        first = await hold.enqueue()
        await gate.until_reached()
        await engine.restart(node.id)
        await until(lambda: node.presence.leaving is not None)
        second = await hold.enqueue()
        await engine.uncordon(node.id)
        gate.open()
        for handle in (first, second):
            assert await handle.result(timeout=PATIENCE_SECONDS) == "held"
        assert (node.presence.leaving, node.presence.exit_code) == (None, 0)
        assert not (await row_of(engine, node)).is_cordoned


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
            node.look_everywhere()
            await until(lambda: node.presence.is_cordoned)
        await engine.store.unregister(first)  # somebody has declared it dead
        await until(lambda: node.id != first and node.scheduler.is_open)
        assert node.presence.is_cordoned
        assert (await row_of(engine, node)).is_cordoned
        handle = await work.enqueue()
        node.look_everywhere()
        await asyncio.sleep(0.05)
        assert ran == []
        await engine.uncordon(node.id)
        await until_state(handle, State.SUCCEEDED)


async def test_on_a_cordoned_node_a_preemptible_body_that_asks_is_told_to_leave_and_goes_back_at_no_cost(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)
    gates = {name: Gate() for name in ("yielding", "stubborn")}
    owned: dict[str, bool] = {}

    @engine.task(preemptible=True)
    async def yielding(ctx: Context) -> str:
        await gates["yielding"].hold()
        owned["yielding"] = await ctx.still_owned()
        return "ran to its end" if owned["yielding"] else "left"

    @engine.task
    async def stubborn(ctx: Context) -> str:
        await gates["stubborn"].hold()
        owned["stubborn"] = await ctx.still_owned()
        return "ran to its end"

    async with engine.worker() as node:
        handles = [await yielding.enqueue(), await stubborn.enqueue()]
        for gate in gates.values():
            await gate.until_reached()
        await engine.cordon(node.id)
        await until(lambda: node.presence.is_cordoned)
        for gate in gates.values():
            gate.open()
        record = await until_state(handles[0], State.READY)
        assert (record.attempts, record.crashes) == (0, 0)
        assert await handles[1].result(timeout=PATIENCE_SECONDS) == "ran to its end"
        assert owned == {"yielding": False, "stubborn": True}
        await engine.uncordon(node.id)
        assert await handles[0].result(timeout=PATIENCE_SECONDS) == "ran to its end"


async def test_the_same_in_a_thread_and_a_cancel_still_counts(new_engine: NewEngine, memory_url: str) -> None:
    engine, gate = new_engine(memory_url), ThreadGate()
    asked: list[bool] = []

    @engine.task(preemptible=True)
    def yielding(ctx: Context) -> str:
        gate.hold()
        asked.append(ctx.still_owned_sync())
        return "left"

    async with engine.worker() as node:
        handle = await yielding.enqueue()
        await gate.until_reached()
        await engine.cordon(node.id)
        await until(lambda: node.presence.is_cordoned)
        await engine.cancel(handle.id)
        gate.open()
        await until_state(handle, State.CANCELLED)
        assert asked == [False]


async def test_the_same_in_a_process(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    work = on(engine, process_bodies.work_until_told_to_leave, preemptible=True)
    async with engine.worker() as node:
        handle = await work.enqueue()
        await until(lambda: has_begun(handle), 60)
        await engine.cordon(node.id)
        record = await until_state(handle, State.READY)
        assert (record.attempts, record.crashes, record.result) == (0, 0, None)


async def has_begun(handle: Handle[str]) -> bool:
    return (await handle.status()).progress is not None


async def test_an_urgent_task_that_waits_for_room_does_not_get_it_on_a_node_that_is_cordoned_meanwhile(
    new_engine: NewEngine, url: str
) -> None:
    engine, gate = new_engine(url), ThreadGate()
    ran: list[int] = []

    @engine.task(preemptible=True)
    def slow() -> str:
        gate.hold()
        return "held"

    @engine.task(urgent=True)
    async def hurry() -> None:
        ran.append(1)

    async with engine.worker(concurrency=1) as node:
        await slow.enqueue()
        await gate.until_reached()
        urgent = await hurry.enqueue()
        await until_state(urgent, State.RUNNING)
        await engine.cordon(node.id)
        await until(lambda: node.presence.is_cordoned)
        gate.open()
        record = await until_state(urgent, State.READY, State.SUCCEEDED)
        assert (record.state, record.attempts, record.crashes, ran) == (State.READY, 0, 0, [])
        await engine.uncordon(node.id)
        await until_state(urgent, State.SUCCEEDED)


async def test_what_is_claimed_and_has_not_begun_goes_back_when_the_node_is_cordoned(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)
    ran: list[int] = []

    @engine.task
    async def block(number: int) -> None:
        """The first to get its turn has the node cordoned before the others get theirs."""
        ran.append(number)
        node.presence.cordon()

    async with engine:
        handles = await block.enqueue_many([(number,) for number in range(50)])
        async with engine.worker() as node:
            await until(lambda: bool(ran))
            for handle in handles[1:]:
                record = await until_state(handle, State.READY)
                assert (record.attempts, record.crashes) == (0, 0)
            assert ran == [0]


# ---------------------------------------------------------------- what a node says of itself


@pytest.mark.usefixtures("quick_heartbeat")
async def test_what_a_node_says_of_itself_is_in_its_row_at_once_and_renewed_with_its_lease(
    new_engine: NewEngine, url: str
) -> None:
    engine, gate = new_engine(url), Gate()

    @engine.task
    async def hold() -> None:
        await gate.hold()

    async def says(**running: int) -> bool:
        record = await row_of(engine, node)
        assert record.state.is_said
        return record.state.running == running

    async def said_at() -> float:
        return time.monotonic() - (await row_of(engine, node)).published_ago

    async def is_said_anew() -> bool:
        return await said_at() > first_said_at + 0.05

    async with engine.worker(concurrency=3) as node:
        assert (await row_of(engine, node)).state.slots_free == 3, "it was said when it registered"
        await hold.enqueue()
        await until(lambda: says(hold=1))
        assert (await row_of(engine, node)).state.slots_free == 2
        gate.open()
        await until(says)
        first_said_at = await said_at()
        await until(is_said_anew)  # although nothing is new


async def test_a_cordon_is_published_without_waiting_for_the_next_heartbeat(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, lease=BIG_LEASE)

    @engine.task
    async def work() -> None: ...

    async def says_cordoned(is_so: bool) -> bool:
        return (await row_of(engine, node)).state.is_cordoned is is_so

    async with engine.worker() as node:
        await engine.cordon(node.id)
        await until(lambda: says_cordoned(True))
        await engine.uncordon(node.id)
        await until(lambda: says_cordoned(False))


# ---------------------------------------------------------------- who is not there


async def test_nobody_is_told_who_is_not_there_and_that_is_written_down(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def work() -> None: ...

    async with engine:
        process = replace(this_process(), pid=os.getpid(), started=0.5)  # another process had this pid before
        await engine.store.register(
            NewNode(
                id="gone",
                name="kim",
                process=process,
                kinds=("work",),
                queues=None,
                concurrency=1,
                lease=60_000_000,
                version="0",
            )
        )
        for give in (engine.cordon, engine.uncordon, engine.drain, engine.restart, engine.shut_down):
            with pytest.raises(OptionError, match=rf"node 'gone' \(kim\) is dead: its process {process.pid} is gone"):
                await give("gone")
            with pytest.raises(OptionError, match=r"there is no node 'lee'; registered are: gone \(kim\)"):
                await give("lee")
        orders = await engine.orders()
        assert all(order.is_refused for order in orders)
        assert Counter((order.subject, order.outcome) for order in orders) == {
            ("gone", "refused: its process is gone"): 5,
            ("lee", "refused: no node of that id"): 5,
        }
        assert [node.cordoned_at for node in await engine.nodes()] == [None]


async def test_a_node_elsewhere_whose_lease_is_over_is_dead_and_a_nul_is_no_id(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)

    @engine.task
    async def work() -> None: ...

    async with engine:
        await engine.store.register(
            NewNode(
                id="far",
                name="kim",
                process=replace(this_process(), host="elsewhere", boot_id="another", pid=1),
                kinds=("work",),
                queues=None,
                concurrency=1,
                lease=1,
                version="0",
            )
        )
        for give in (engine.cordon, engine.uncordon, engine.drain, engine.restart, engine.shut_down):
            with pytest.raises(OptionError, match=r"node 'far' \(kim\) is dead: its lease has been over for"):
                await give("far")
            with pytest.raises(OptionError, match="has no NUL in it"):
                await give("fa\0r")
        outcomes = Counter((order.subject, order.outcome) for order in await engine.orders())
        assert outcomes == {("far", "refused: its lease is over"): 5}
        assert [node.cordoned_at for node in await engine.nodes()] == [None]
