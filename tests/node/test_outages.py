"""The store is away, or refuses, or forgets the node: nothing is lost, nothing runs twice, and the node goes on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import (
    PATIENCE_SECONDS,
    Gate,
    Pulse,
    Renewals,
    ThreadGate,
    TroubledStore,
    check_counts,
    ended,
    is_away,
    make_troubled,
    until,
    until_state,
)

from synergon import Context, Engine, Retry, State
from synergon.errors import DataRejected, NotConnected, StoreError, StoreUnavailable
from synergon.node.processes.executors import LocalExecutor
from synergon.options.settings import Settings


async def test_outcomes_are_written_when_the_store_is_back_and_nothing_runs_twice(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)
    runs: Counter[int] = Counter()

    @engine.task
    async def note(number: int) -> int:
        runs[number] += 1
        return number

    with caplog.at_level(logging.DEBUG, logger="synergon"):
        async with engine.worker():
            with stores[-1].away("finish"):
                handles = await note.enqueue_many([(number,) for number in range(20)])
                await until(lambda: stores[-1].calls["finish"] >= 2)
                assert (await handles[0].status()).state is State.RUNNING
            results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
            await check_counts(engine)
    assert results == list(range(20))
    assert runs == Counter(range(20))
    assert caplog.text.count("the store is away: the database is away; the node waits for it") == 1
    assert caplog.text.count("the store is back after") == 1
    assert "20 outcomes wait for the store" in caplog.text


async def test_nothing_is_claimed_while_outcomes_cannot_be_written(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.02)
    stores = make_troubled(engine)
    ran: list[int] = []

    @engine.task
    async def note(number: int) -> None:
        ran.append(number)

    async with engine.worker():
        with stores[-1].away("finish"):
            await note.enqueue(1)
            await until(lambda: stores[-1].calls["finish"] >= 1)
            handle = await note.enqueue(2)
            await asyncio.sleep(0.1)  # several sweeps
            assert ran == [1]
        await handle.result(PATIENCE_SECONDS)
    assert ran == [1, 2]


async def test_an_outcome_whose_answer_was_lost_counts_once(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.05)
    stores = make_troubled(engine)
    ran: list[str] = []

    @engine.task
    async def child() -> None:
        ran.append("child")

    @engine.task(retry=Retry(attempts=3, first=0.05))
    async def parent(ctx: Context) -> str:
        ran.append("parent")
        if ctx.attempt == 1:
            raise ValueError("once")
        ctx.enqueue(child.call())
        return "done"

    lost: list[Any] = []

    async def lose_every_first_answer(call: Callable[[], Awaitable[Any]]) -> Any:
        verdicts = await call()
        if len(lost) % 2 == 0:
            lost.append(verdicts)
            raise StoreUnavailable("the answer was lost")
        lost.append(verdicts)
        return verdicts

    async with engine.worker(drain=True):
        stores[-1].cause("finish", lose_every_first_answer)
        handle = await parent.enqueue()
        assert await handle.result(PATIENCE_SECONDS) == "done"
        record = await handle.status()
    assert ran == ["parent", "parent", "child"]
    assert (record.attempts, len(record.errors)) == (2, 1)


async def test_a_task_whose_claim_was_made_and_not_answered_is_given_back_and_runs(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url, sweep=0.05)
    stores = make_troubled(engine)
    lost: list[Any] = []

    @engine.task
    async def note(ctx: Context) -> tuple[int, int]:
        return ctx.claim_no, ctx.attempt

    async def lose_the_first_claims(call: Callable[[], Awaitable[Any]]) -> Any:
        claims = await call()
        if claims and not lost:
            lost.append(claims)
            raise StoreUnavailable("the answer was lost")
        return claims

    async with engine.worker():
        stores[-1].cause("claim", lose_the_first_claims)
        handle = await note.enqueue()
        assert tuple(await handle.result(PATIENCE_SECONDS)) == (2, 1)
        assert (await handle.status()).crashes == 0


async def test_claims_go_on_when_the_store_is_back(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)

    @engine.task
    async def note() -> str:
        return "ran"

    async with engine.worker():
        with stores[-1].away("claim", "wake", "reap", "prune"):
            handle = await note.enqueue()
            late = await note.with_options(delay=0.05).enqueue()
            await until(lambda: stores[-1].calls["claim"] >= 3)
            assert (await handle.status()).state is State.READY
        assert await handle.result(PATIENCE_SECONDS) == "ran"
        assert await late.result(PATIENCE_SECONDS) == "ran"


@pytest.mark.parametrize("error", [DataRejected("cannot be stored"), RuntimeError("a bug in the store")], ids=repr)
async def test_an_outcome_that_the_store_refuses_ends_that_task_and_not_its_neighbours(
    new_engine: NewEngine, url: str, error: Exception
) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)
    poison: list[int] = []

    @engine.task
    async def note(number: int) -> int:
        return number

    real = engine._ports.make_store

    def make(url: str) -> Any:
        store = real(url)
        finish = store.finish

        async def refuse_poison(outcomes: Any) -> Any:
            if any(entry.id in poison and not hasattr(entry.outcome, "error") for entry in outcomes):
                raise error
            return await finish(outcomes)

        store.finish = refuse_poison  # type: ignore[method-assign]  # put in its place
        return store

    engine._ports.make_store = make
    async with engine:
        handles = await note.enqueue_many([(number,) for number in range(10)])
        poison.append(handles[4].id)
        async with engine.worker():
            records = [await ended(handle) for handle in handles]
            assert await (await note.enqueue(99)).result(PATIENCE_SECONDS) == 99, "and claims go on"
    assert [record.state for record in records] == [State.SUCCEEDED] * 4 + [State.FAILED] + [State.SUCCEEDED] * 5
    assert records[4].error is not None
    assert str(error) in records[4].error.message
    assert stores


async def test_an_outcome_is_kept_while_the_store_refuses_everybody(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url, sweep=0.02)
    stores = make_troubled(engine)
    ran: list[int] = []

    @engine.task
    async def note(number: int) -> int:
        ran.append(number)
        return number

    async def refuse(_call: Callable[[], Awaitable[Any]]) -> Any:
        raise StoreError("permission denied for table history")

    async with engine.worker():
        stores[-1].cause("finish", refuse)
        first = await note.enqueue(1)
        await until(lambda: stores[-1].calls["finish"] >= 2)
        second = await note.enqueue(2)
        await until(lambda: stores[-1].calls["finish"] >= 3)
        assert ran == [1], "claims are held back"
        stores[-1].end("finish")
        assert [await handle.result(PATIENCE_SECONDS) for handle in (first, second)] == [1, 2]
    assert ran == [1, 2]
    assert caplog.text.count("1 outcomes wait for the store: permission denied for table history") == 1


async def test_a_store_that_refuses_everybody_is_told_of_once_and_in_one_line(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url, sweep=0.02)
    stores = make_troubled(engine)

    async def refuse(_call: Callable[[], Awaitable[Any]]) -> Any:
        raise StoreError("the role is refused")

    @engine.task
    async def note() -> str:
        return "ran"

    async with engine.worker():
        stores[-1].cause("claim", refuse)
        await until(lambda: stores[-1].calls["claim"] >= 4)
        stores[-1].end("claim")
        assert await (await note.enqueue()).result(PATIENCE_SECONDS) == "ran"
    told = [record for record in caplog.records if "the role is refused" in record.getMessage()]
    assert [(record.levelno, record.exc_info) for record in told] == [(logging.ERROR, None)]


async def test_an_outage_that_ends_in_a_refusal_does_not_hold_claims_back_for_ever(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)
    gate = Gate()
    troubles: list[Exception] = [StoreUnavailable("away"), DataRejected("something in it cannot be stored")]

    @engine.task
    async def note() -> str:
        await gate.hold()
        return "ran"

    async def one_after_the_other(call: Callable[[], Awaitable[Any]]) -> Any:
        if troubles:
            raise troubles.pop(0)
        return await call()

    async with engine.worker() as node:
        stores[-1].cause("finish", one_after_the_other)
        handles = await note.enqueue_many([()] * 3)
        await until(lambda: len(node.runner.running) == 3)
        gate.open()
        for handle in handles:
            assert await handle.result(PATIENCE_SECONDS) == "ran"
        assert await (await note.enqueue()).result(PATIENCE_SECONDS) == "ran"


async def test_a_waiter_waits_through_an_outage(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)

    @engine.task
    async def note() -> str:
        return "ran"

    async with engine.worker():
        with stores[-1].away("get"):
            handle = await note.enqueue()
            waiter = asyncio.create_task(handle.result(PATIENCE_SECONDS))
            await until(lambda: stores[-1].calls["get"] >= 1)
        assert await waiter == "ran"


async def test_a_stop_during_an_outage_ends_and_says_what_it_could_not_do(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url, lease=0.5)
    stores = make_troubled(engine)

    @engine.task
    async def note() -> None: ...

    with caplog.at_level(logging.WARNING, logger="synergon"):
        async with asyncio.timeout(PATIENCE_SECONDS):
            async with engine.worker(grace=0):
                stores[-1].cause("finish", _away)
                stores[-1].cause("unregister", _away)
                await note.enqueue()
                await until(lambda: stores[-1].calls["finish"] >= 1)
    assert "some outcomes could not be written before the lease was over; their tasks run again" in caplog.text
    assert "cannot remove the row of node" in caplog.text


async def _away(_call: Callable[[], Awaitable[Any]]) -> Any:
    raise StoreUnavailable("the database is away")


# ---------------------------------------------------------------- the lease


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_node_whose_row_is_gone_joins_again_under_a_new_id(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.05)
    gate = Gate()
    claims: list[int] = []

    @engine.task
    async def hold(ctx: Context) -> str:
        claims.append(ctx.claim_no)
        if ctx.claim_no == 1:
            await gate.hold()
        return "ran"

    async with engine.worker() as node:
        first_id = node.id
        handle = await hold.enqueue()
        await gate.until_reached()
        await engine._store.unregister(first_id)
        assert await handle.result(PATIENCE_SECONDS) == "ran"
        assert node.id != first_id
        assert [record.id for record in await engine.nodes()] == [node.id]
        assert (await handle.status()).node_id == node.id
    assert claims == [1, 2]


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_node_that_joins_again_does_so_as_soon_as_the_store_lets_it(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.05)
    stores = make_troubled(engine)

    @engine.task
    async def note() -> str:
        return "ran"

    async with engine.worker() as node:
        first_id = node.id
        with stores[-1].away("register"):
            await engine._store.unregister(first_id)
            await until(lambda: stores[-1].calls["register"] >= 3)
        assert await (await note.enqueue()).result(PATIENCE_SECONDS) == "ran"
        assert node.id != first_id


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_node_that_lost_its_lease_and_cannot_join_again_can_be_stopped(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)

    async with asyncio.timeout(PATIENCE_SECONDS):
        async with engine.worker():
            stores[-1].cause("register", _away)
            (record,) = await engine.nodes()
            await engine._store.unregister(record.id)
            await until(lambda: stores[-1].calls["register"] >= 2)


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_node_that_is_stopped_while_it_joins_again_claims_nothing_more(new_engine: NewEngine, url: str) -> None:
    keeper, engine = new_engine(url), new_engine(url, sweep=0.05)
    stores = make_troubled(engine)
    gate, joining = Gate(), Gate()
    ran: list[int] = []

    @engine.task
    async def note(number: int) -> None:
        ran.append(number)
        if number == 0:
            await gate.hold()

    async def late(call: Callable[[], Awaitable[Any]]) -> Any:
        await joining.hold()
        return await call()

    async with keeper, engine:
        async with engine.worker() as node:
            stores[-1].cause("register", late)
            await engine._store.unregister(node.id)
            await joining.until_reached()
            stop = asyncio.create_task(engine._stop_node(0))
            await asyncio.sleep(0)
            joining.open()
            await engine.enqueue([note.call(number) for number in range(1, 5)])
            async with asyncio.timeout(PATIENCE_SECONDS):
                await stop
        assert ran == []
        assert await keeper.nodes() == []


class FencedExecutor(LocalExecutor):
    """Notes that the process should have ended, instead of ending it."""

    def __init__(self, settings: Settings, exits: list[int]) -> None:
        super().__init__(settings)
        self._exits = exits

    def exit_process(self, code: int) -> None:
        self._exits.append(code)


def keep_alive(engine: Engine) -> list[int]:
    """The exits that the engine's node would have made."""
    exits: list[int] = []
    engine._ports.make_executor = lambda settings: FencedExecutor(settings, exits)
    return exits


async def test_a_node_that_cannot_renew_cancels_its_attempts_before_the_lease_is_over(
    new_engine: NewEngine, memory_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(memory_url, lease=4)
    way = Renewals(engine)
    exits = keep_alive(engine)
    gate = Gate()
    ended_with: list[float] = []

    @engine.task
    async def hold(ctx: Context) -> str:
        if ctx.claim_no > 1:
            return "ran elsewhere"
        try:
            await gate.hold()
        except asyncio.CancelledError:
            left = [record.lease_remaining for record in await engine.nodes() if record.id == first_id]
            ended_with.append(left[0] if left else 0.0)
            raise
        return "never"

    with caplog.at_level(logging.WARNING, logger="synergon"), Pulse() as pulse:
        async with engine.worker() as node:
            first_id = node.id
            handle = await hold.enqueue()
            await gate.until_reached()
            way.is_cut = True
            await until(lambda: bool(ended_with))
            await until_state(handle, State.READY, State.RUNNING, State.SUCCEEDED)
            way.is_cut = False
            assert await handle.result(PATIENCE_SECONDS) == "ran elsewhere"
            record = await handle.status()
            assert record.node_id == node.id != first_id
    assert ended_with[0] + pulse.missed_seconds > 0, "others could not have taken it yet"
    assert (record.attempts, record.crashes) == (1, 0)
    assert exits == []
    assert "cannot renew the lease: the way is cut" in caplog.text
    assert f"node {first_id} has lost its lease" in caplog.text


async def test_a_thread_that_will_not_end_with_the_lease_takes_the_process_with_it(
    new_engine: NewEngine, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = new_engine(url, lease=0.6)
    way = Renewals(engine)
    exits = keep_alive(engine)
    gate = ThreadGate()

    @engine.task
    def stubborn() -> None:
        gate.hold()

    with caplog.at_level(logging.CRITICAL, logger="synergon"):
        async with engine.worker():
            await stubborn.enqueue()
            await gate.until_reached()
            way.is_cut = True
            await until(lambda: bool(exits))
            gate.open()
    assert exits == [75]
    assert "a task function did not end before the lease expired; this process exits" in caplog.text


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_claim_that_is_answered_after_the_lease_was_lost_starts_nothing(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url, sweep=0.05)
    stores = make_troubled(engine)
    gate = Gate()
    claims: list[int] = []

    @engine.task
    async def note(ctx: Context) -> None:
        claims.append(ctx.claim_no)

    async def answer_late(call: Callable[[], Awaitable[Any]]) -> Any:
        answer = await call()
        if answer:
            stores[-1].end("claim")
            await gate.hold()
        return answer

    async with engine.worker() as node:
        first_id = node.id
        stores[-1].cause("claim", answer_late)
        handle = await note.enqueue()
        await gate.until_reached()
        await engine._store.unregister(first_id)
        await until(lambda: not node.scheduler.is_open)
        gate.open()
        record = await ended(handle)
        assert record.node_id == node.id != first_id
    assert claims == [2]


@pytest.mark.usefixtures("quick_heartbeat")
async def test_a_short_pause_of_the_whole_process_costs_no_work(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "ran"

    async with engine.worker() as node:
        node_id = node.id
        handle = await hold.enqueue()
        await gate.until_reached()
        time.sleep(0.4)  # noqa: ASYNC251  nothing of this process's loop runs meanwhile
        gate.open()
        assert await handle.result(PATIENCE_SECONDS) == "ran"
        assert node.id == node_id


@pytest.mark.parametrize("step", ["permits_freed", "ended"])
async def test_a_mistake_beside_the_writing_of_outcomes_leaves_none_behind(
    new_engine: NewEngine, url: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each outcome is written, and the node's stop, which waits for that, returns."""
    engine = new_engine(url)

    @engine.task
    async def note(number: int) -> int:
        return number

    async with engine, asyncio.timeout(PATIENCE_SECONDS):
        async with engine.worker() as node:
            real, failed = getattr(node.signals, step), asyncio.Event()

            def fail_once(argument: Any) -> None:
                if not failed.is_set():
                    failed.set()
                    raise LookupError("a mistake")
                real(argument)

            monkeypatch.setattr(node.signals, step, fail_once)
            handles = await note.enqueue_many([(number,) for number in range(3)])
            await failed.wait()
        states = [(await handle.status()).state for handle in handles]
    assert State.RUNNING not in states


async def test_a_connect_that_cannot_declare_leaves_nothing_connected(engine: Engine) -> None:
    engine.limit("license", 1)
    real = engine._ports.make_store
    opened: list[TroubledStore] = []

    def make(url: str) -> Any:
        store = TroubledStore(real(url))
        if not opened:
            store.cause("declare", is_away)
        opened.append(store)
        return store

    engine._ports.make_store = make
    with pytest.raises(StoreUnavailable):
        await engine.connect()
    assert opened[0].calls["close"] == 1
    with pytest.raises(NotConnected):
        await engine.queues()
    async with engine:
        assert [limit.name for limit in await engine.limits()] == ["license"]
    assert [store.calls["close"] for store in opened] == [1, 1], "and one close disconnects"
