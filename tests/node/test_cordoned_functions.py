"""What runs on a node when it is cordoned goes on or goes back, and what waits there to begin does not begin."""

from __future__ import annotations

from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, until, until_state

from synergon import Context, Handle, State


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
        await until(lambda: node.cordon.is_cordoned)
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
        await until(lambda: node.cordon.is_cordoned)
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
        await until(lambda: node.cordon.is_cordoned)
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
        node.cordon.cordon()

    async with engine:
        handles = await block.enqueue_many([(number,) for number in range(50)])
        async with engine.worker() as node:
            await until(lambda: bool(ran))
            for handle in handles[1:]:
                record = await until_state(handle, State.READY)
                assert (record.attempts, record.crashes) == (0, 0)
            assert ran == [0]
