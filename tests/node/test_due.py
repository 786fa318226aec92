"""Tasks that are due later: on time, once, and never again."""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, SOON, Gate, Pace, ended, make_troubled, until

from synergon import Context, Engine, Reason, Retry, State, TaskFailed


async def test_delayed_tasks_run_once_each_on_time_and_never_again(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.05)
    started: dict[int, list[float]] = {}

    @engine.task
    async def note(number: int) -> None:
        started.setdefault(number, []).append(time.monotonic())

    async with engine.worker():
        with Pace() as pace:
            due: dict[int, float] = {}
            handles = []
            for number in range(20):
                delay = 0.1 + 0.02 * number
                due[number] = time.monotonic() + delay
                handles.append(await note.with_options(delay=delay).enqueue(number))
                state = (await handles[-1].status()).state
                assert state is State.SCHEDULED or time.monotonic() >= due[number]
            await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
            sweeps = 5 * 0.05
            await asyncio.sleep(sweeps)  # the time itself is what is tested: nothing may happen in it
    assert [len(started[number]) for number in range(20)] == [1] * 20
    lateness = [started[number][0] - due[number] for number in range(20)]
    assert min(lateness) > -0.002, "the store's clock has milliseconds, so that much may be early"
    assert statistics.median(lateness) < pace.seconds(SOON)


@pytest.mark.parametrize("delay", [0.2, timedelta(milliseconds=200), "200ms"], ids=["seconds", "timedelta", "word"])
async def test_a_delay_may_be_seconds_a_timedelta_or_a_word(engine: Engine, delay: float | timedelta | str) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine:
        record = await (await note.with_options(delay=delay).enqueue()).status()
    assert record.run_at - record.enqueued_at == timedelta(milliseconds=200)


async def test_durations_below_a_second_survive_the_store_to_the_microsecond(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    moment = datetime(2101, 2, 3, 4, 5, 6, 789_123, tzinfo=UTC)
    async with engine:
        delayed = await (await note.with_options(delay="1.5ms", expires_in=0.000_003).enqueue()).status()
        appointed = await (await note.with_options(run_at=moment).enqueue()).status()
    assert delayed.run_at - delayed.enqueued_at == timedelta(microseconds=1500)
    assert delayed.expires_at is not None
    assert delayed.expires_at - delayed.enqueued_at == timedelta(microseconds=3)
    assert appointed.run_at == moment
    assert appointed.run_at.tzinfo is not None


async def test_a_moment_is_the_same_in_every_time_zone(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    from zoneinfo import ZoneInfo

    moment = datetime(2101, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    async with engine:
        record = await (await note.with_options(run_at=moment).enqueue()).status()
    assert record.run_at == moment
    assert record.run_at.hour == 10


async def test_a_moment_that_has_passed_is_now(engine: Engine) -> None:
    @engine.task
    async def note() -> str:
        return "ran"

    async with engine.worker():
        handle = await note.with_options(run_at=datetime(1970, 1, 1, tzinfo=UTC)).enqueue()
        assert await handle.result(PATIENCE_SECONDS) == "ran"


async def test_a_thousand_tasks_due_at_the_same_instant_run_once_each(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, sweep=0.05)
    ran: Counter[int] = Counter()

    @engine.task
    async def note(number: int) -> None:
        ran[number] += 1

    async with engine.worker(drain=True):
        moment = datetime.now(UTC) + timedelta(seconds=0.3)
        await engine.enqueue([note.with_options(run_at=moment).call(number) for number in range(1000)])
        assert not ran
    assert ran == Counter(range(1000))


async def test_a_task_that_is_due_earlier_than_all_others_does_not_wait_for_them(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine.worker():
        await note.with_options(delay=3600).enqueue()
        await note.with_options(delay=1800).enqueue()
        soon = await note.with_options(delay=0.05).enqueue()
        await soon.result(PATIENCE_SECONDS)


async def test_a_retry_that_comes_while_the_store_answers_what_is_due_next_is_not_left_to_the_sweep(
    new_engine: NewEngine, url: str
) -> None:
    engine, answer = new_engine(url), Gate()
    stores = make_troubled(engine)

    @engine.task(retry=Retry(attempts=2, first=0.01))
    async def fail_once(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ValueError("once")
        return "on time"

    async def answer_late(wake: Callable[[], Awaitable[Any]]) -> Any:
        stores[-1].end("wake")
        woken = await wake()
        await answer.hold()
        return woken

    async with engine.worker() as node:
        stores[-1].cause("wake", answer_late)
        node.alarm.check_now()
        await answer.until_reached()
        handle = await fail_once.enqueue()
        await until(lambda: node.completer.finished == 1)
        answer.open()
        assert await handle.result(PATIENCE_SECONDS) == "on time"


async def test_what_was_due_while_nobody_ran_is_run_when_somebody_does(engine: Engine) -> None:
    @engine.task
    async def note() -> str:
        return "late"

    async with engine:
        handle = await note.with_options(delay=0.01).enqueue()

        async def is_due() -> bool:
            record = await handle.status()
            return record.run_at < datetime.now(UTC)

        await until(is_due)
        async with engine.worker():
            assert await handle.result(PATIENCE_SECONDS) == "late"


async def test_one_line_tells_how_many_due_tasks_were_made_ready(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    @engine.task
    async def note() -> None: ...

    moment = datetime.now(UTC) + timedelta(seconds=0.3)
    with caplog.at_level(logging.DEBUG, logger="synergon"):
        async with engine:
            await engine.enqueue([note.with_options(run_at=moment).call() for _ in range(17)])
            early = (await engine.counts())[State.SCHEDULED]  # all of them, unless the machine has stood still
            async with engine.worker(drain=True):
                pass
    lines = [record.getMessage() for record in caplog.records if "due tasks ready" in record.getMessage()]
    assert lines == ([f"made {early} due tasks ready"] if early else [])


# ---------------------------------------------------------------- expiry


async def test_a_task_that_nobody_starts_in_time_expires_and_whoever_waits_is_told(engine: Engine) -> None:
    gate = Gate()
    ran: list[str] = []

    @engine.task
    async def hold(name: str) -> None:
        ran.append(name)
        await gate.hold()

    async with engine.worker(concurrency=1):
        await hold.enqueue("first")
        await gate.until_reached()
        handle = await hold.with_options(expires_in=0.1).enqueue("too late")
        with pytest.raises(TaskFailed) as failure:
            await handle.result(PATIENCE_SECONDS)
        gate.open()
    assert failure.value.record.reason is Reason.EXPIRED
    assert failure.value.record.attempts == 0
    assert ran == ["first"]


async def test_a_task_whose_time_is_over_is_not_started_even_if_nobody_has_ended_it_yet(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url, sweep=0.05)
    stores = make_troubled(engine)
    gate = Gate()
    ran: list[str] = []

    @engine.task
    async def hold(name: str) -> None:
        ran.append(name)
        await gate.hold()

    async with engine.worker(concurrency=1):
        first = await hold.enqueue("first")
        await gate.until_reached()
        with stores[-1].away("wake"):
            handle = await hold.with_options(expires_in=0.05).enqueue("too late")
            await asyncio.sleep(0.1)  # past its expiry
            gate.open()
            await first.result(PATIENCE_SECONDS)
            await (await hold.enqueue("second")).result(PATIENCE_SECONDS)
        assert (await ended(handle)).reason is Reason.EXPIRED
    assert ran == ["first", "second"]


async def test_a_task_that_started_in_time_may_run_on_past_its_expiry(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def hold() -> str:
        await gate.hold()
        return "done"

    async with engine.worker():
        handle = await hold.with_options(expires_in=0.1).enqueue()
        other = await hold.with_options(expires_in=0.1, delay=30).enqueue()
        await gate.until_reached()
        assert (await ended(other)).reason is Reason.EXPIRED
        assert (await handle.status()).state is State.RUNNING
        gate.open()
        assert await handle.result(PATIENCE_SECONDS) == "done"


async def test_tasks_of_a_paused_queue_expire_too(engine: Engine) -> None:
    @engine.task
    async def note() -> None: ...

    async with engine.worker():
        await engine.pause("default")
        handle = await note.with_options(expires_in=0.05).enqueue()
        assert (await ended(handle)).reason is Reason.EXPIRED
