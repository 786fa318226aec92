"""Statistics of real engines: what they write adds up with what was done, whoever dies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401  a fixture
from tests.support import TroubledStore, ended, make_troubled, until

from synergon import Context, Discard, Engine, OptionError, Retry, Statistics
from synergon.errors import StoreUnavailable
from synergon.model.claims import Claim
from synergon.model.lifecycle import Reason, State
from synergon.model.outcomes import ErrorRecord, Failed, FencedOutcome, Succeeded, Verdict
from synergon.model.task_statistics import MAX_ERRORS, StatisticsQuery
from synergon.model.tasks import NewTask
from synergon.node.statistics_writer import StatisticsWriter
from synergon.stores.base import Store
from synergon.stores.memory import MemoryStore
from synergon.testing.clock import ManualClock


async def stored(engine: Engine) -> list[Statistics]:
    """What is in the store. `engine.statistics()` would write first."""
    return await engine._store.statistics(StatisticsQuery(age=3600 * 1_000_000))


async def test_the_depth_of_a_queue_is_recorded_once_in_a_minute(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task(queue="mail")
    async def work() -> None: ...

    async with engine:
        await engine.pause("mail")
        await work.enqueue_many([()] * 7)
        async with engine.worker():

            async def is_recorded() -> bool:
                return bool(await stored(engine))

            await until(is_recorded)
            (found,) = await engine.statistics(queue="mail")
            assert (found.kind, found.depth, [point.depth for point in found.points]) == ("work", 7, [7])


def by_kind(found: list[Statistics]) -> dict[str, Statistics]:
    return {one.kind: one for one in found}


async def lost_answer(call: Callable[[], Awaitable[Any]]) -> Any:
    """The store does it, and the caller does not hear of it."""
    await call()
    raise StoreUnavailable("the answer is lost")


def register(engine: Engine) -> dict[str, Any]:
    @engine.task(queue="mail")
    async def work(number: int) -> int:
        return number

    @engine.task(retry=Retry(attempts=3, first=0, jitter=0))
    async def fail(number: int) -> None:
        raise ValueError(f"order {number} of 'ada' is missing")

    @engine.task
    def discard() -> None:
        raise Discard

    @engine.task
    async def parent(ctx: Context) -> None:
        for number in range(4):
            ctx.enqueue(work.call(number))

    return {"work": work, "fail": fail, "discard": discard, "parent": parent}


async def test_the_statistics_of_a_known_workload_add_up_exactly(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    kinds = register(engine)
    async with engine:
        async with engine.worker():
            handles = await kinds["work"].enqueue_many([(number,) for number in range(20)])
            handles += [await kinds["fail"].enqueue(7), await kinds["fail"].enqueue(123)]
            handles += [await kinds["discard"].enqueue(), await kinds["parent"].enqueue()]
            for handle in handles:
                await ended(handle)
        found = by_kind(await engine.statistics())
        assert {kind: one.accepted for kind, one in found.items()} == {"work": 24, "fail": 2, "discard": 1, "parent": 1}
        assert {kind: one.started for kind, one in found.items()} == {"work": 24, "fail": 6, "discard": 1, "parent": 1}
        assert found["work"].succeeded == found["work"].wait.count == found["work"].run.count == 24
        assert found["work"].queue == "mail"
        assert found["fail"].failed == {"exhausted": 2}
        assert found["fail"].ended == {"exhausted": 2, "retried": 4}
        (error,) = found["fail"].errors
        assert (error.type, error.message, error.count) == ("ValueError", "order # of '…' is missing", 6)
        assert found["discard"].failed == {"discarded": 1}
        assert await engine.statistics(kind="work", queue="default") == []
        assert by_kind(await engine.statistics(queue="mail")).keys() == {"work"}


async def test_a_producer_writes_what_it_has_enqueued_when_it_closes(new_engine: NewEngine, sqlite_url: str) -> None:
    producer, reader = new_engine(sqlite_url), new_engine(sqlite_url)
    kinds = register(producer)
    async with producer:
        await kinds["work"].enqueue(1)
        await kinds["work"].enqueue_many([(2,), (3,)])
        await kinds["work"].with_options(key="one").enqueue(4)
        await kinds["work"].with_options(key="one", on_conflict="return").enqueue(5)
    async with reader:
        (found,) = await reader.statistics()
        assert (found.kind, found.accepted, found.started) == ("work", 4, 0)


async def test_a_producer_writes_after_a_heartbeat_too(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url, lease=0.6)
    kinds = register(engine)
    async with engine:
        for number in (1, 2):
            await kinds["work"].enqueue(number)

            async def is_written(expected: int = number) -> bool:
                return [one.accepted for one in await stored(engine)] == [expected]

            await until(is_written)


async def test_a_read_includes_what_the_engine_itself_has_just_counted(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    kinds = register(engine)
    async with engine:
        await kinds["work"].enqueue(1)
        assert await stored(engine) == []
        assert [one.accepted for one in await engine.statistics()] == [1]


async def test_a_worker_writes_with_its_heartbeats_and_only_what_is_new(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, lease=0.6)
    stores = make_troubled(engine)
    kinds = register(engine)
    async with engine.worker() as node:
        await ended(await kinds["work"].enqueue(1))

        async def is_written() -> bool:
            return [one.succeeded for one in await stored(engine)] == [1]

        await until(is_written)
        written = stores[-1].calls["append_statistics"]
        await node.statistics.write()
        assert stores[-1].calls["append_statistics"] == written, "nothing has changed"


async def test_what_could_not_be_written_is_written_later_and_once(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, lease=0.6)
    stores = make_troubled(engine)
    kinds = register(engine)
    async with engine.worker() as node:
        stores[-1].cause("append_statistics", lost_answer)
        for number in range(3):
            await ended(await kinds["fail"].enqueue(number))
            before = stores[-1].calls["append_statistics"]
            await until(lambda before=before: stores[-1].calls["append_statistics"] > before)  # type: ignore[misc]
        stores[-1].end("append_statistics")
        await node.statistics.write()
        (found,) = await engine.statistics(kind="fail")
        assert (found.accepted, found.started, found.failed) == (3, 9, {"exhausted": 3})
        assert [error.count for error in found.errors] == [9]


@pytest.fixture
async def minutes() -> AsyncIterator[Minutes]:
    """A writer on a clock that a test moves."""
    clock = ManualClock()
    store = TroubledStore(MemoryStore(clock=clock))
    await store._real.open()
    yield Minutes(clock, store)
    await store._real.close()


class Minutes:
    """Counts and writes by the minute."""

    def __init__(self, clock: ManualClock, store: TroubledStore) -> None:
        self.clock = clock
        self.store = store
        self.writer = StatisticsWriter(cast("Store", store), clock, 5.0)

    def count(self, number: int, error: str | None = None) -> None:
        """As many tasks are enqueued, started and end."""
        metrics = self.writer.metrics
        metrics.note_accepted([NewTask(kind="work")] * number)
        claims = [Claim(one, 1, "work", "default", b"", 1, None, None, (), None) for one in range(number)]
        metrics.note_started(claims)
        outcome: Succeeded | Failed = Succeeded()
        if error is not None:
            outcome = Failed(reason=Reason.ERROR, error=ErrorRecord(attempt=1, type="E", message=error))
        state = State.SUCCEEDED if error is None else State.FAILED
        for claim in claims:
            fenced = FencedOutcome(id=claim.id, claim_no=1, outcome=outcome)
            metrics.note_finished([fenced], [Verdict(id=claim.id, state=state)])

    async def read(self) -> Statistics:
        (found,) = await self.store._real.statistics(StatisticsQuery(age=3600 * 1_000_000))
        return found


async def test_each_minute_has_rows_of_its_own_and_sums_add_up(minutes: Minutes) -> None:
    for _ in range(3):
        minutes.count(1)
        await minutes.writer.write()
        minutes.count(2, error="no 7")
        await minutes.writer.write()
        minutes.clock.advance(60)
    found = await minutes.read()
    assert [(point.accepted, point.succeeded, point.failed) for point in found.points] == [(3, 1, 2)] * 3
    assert (found.accepted, found.started, found.ended) == (9, 9, {"succeeded": 3, "error": 6})
    assert [(error.message, error.count) for error in found.errors] == [("no #", 6)]


async def test_errors_of_a_minute_without_a_write_are_not_lost(minutes: Minutes) -> None:
    minutes.count(1, error="a")
    await minutes.writer.write()
    minutes.clock.advance(60)
    minutes.count(1)
    await minutes.writer.write()
    minutes.clock.advance(60)
    minutes.count(2, error="a")
    minutes.clock.advance(60)
    await minutes.writer.write()
    assert [error.count for error in (await minutes.read()).errors] == [3]


async def test_a_write_whose_answer_is_lost_is_repeated_to_its_own_minute(minutes: Minutes) -> None:
    minutes.count(1)
    await minutes.writer.write()
    minutes.store.cause("append_statistics", lost_answer)
    for _ in range(3):
        minutes.count(1, error="a")
        minutes.clock.advance(60)
        with pytest.raises(StoreUnavailable):
            await minutes.writer.write()
    minutes.store.end("append_statistics")
    minutes.count(1)
    await minutes.writer.write()
    found = await minutes.read()
    assert (found.accepted, found.ended) == (5, {"succeeded": 2, "error": 3})
    assert [error.count for error in found.errors] == [3]


async def test_what_a_killed_engine_had_not_written_is_missing_and_nothing_else(minutes: Minutes) -> None:
    minutes.count(10)
    await minutes.writer.write()
    minutes.count(5)  # since the last heartbeat; then the process is killed
    survivor = Minutes(minutes.clock, minutes.store)
    survivor.count(3)
    await survivor.writer.write()
    assert (await minutes.read()).accepted == 13


async def test_different_errors_of_a_minute_are_bounded(minutes: Minutes) -> None:
    for number in range(50):
        minutes.count(1, error=chr(ord("a") + number))
    await minutes.writer.write()
    assert len((await minutes.read()).errors) == MAX_ERRORS
    minutes.clock.advance(60)
    minutes.count(1, error="new")
    await minutes.writer.write()
    assert "new" in {error.message for error in minutes.writer.metrics.tallies["work", "default"].errors.values()}


async def test_a_read_of_a_wrong_time_is_rejected(new_engine: NewEngine, memory_url: str) -> None:
    async with new_engine(memory_url) as engine:
        assert await engine.statistics(since=datetime.now(UTC) - timedelta(hours=3)) == []
        for since in ("soon", -1, 0, datetime.now(UTC) + timedelta(hours=1), datetime(2026, 1, 1)):  # noqa: DTZ001
            with pytest.raises(OptionError, match="since"):
                await engine.statistics(since=since)
        with pytest.raises(OptionError, match="kind must be a text"):
            await engine.statistics(kind=7)  # type: ignore[arg-type]


def test_the_statistics_have_a_synchronous_twin(new_engine: NewEngine, sqlite_url: str) -> None:
    engine = new_engine(sqlite_url)
    kinds = register(engine)
    with engine:
        kinds["work"].enqueue_sync(1)
    with engine:
        (found,) = engine.statistics_sync(since="10m")
        assert found.accepted == 1
