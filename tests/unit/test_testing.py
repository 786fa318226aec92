"""`synergon.testing`: a user's engine, on a store and a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

import pytest

from synergon import (
    Context,
    Discard,
    Engine,
    KindError,
    NotAvailable,
    OptionError,
    PayloadError,
    Reason,
    Resources,
    ResultTimeout,
    Retry,
    RetryAfter,
    Snooze,
    State,
    SynergonError,
    TaskDeleted,
    TaskFailed,
    injected,
    testing,
)
from synergon.testing import Tester

MIDNIGHT = datetime(2030, 1, 1, tzinfo=UTC)

engine = Engine("sqlite:////nonexistent/folder/app.db")  # whoever opens this fails
ran: list[str] = []


@dataclass
class Address:
    name: str
    mail: str


@engine.task
async def greet(name: str) -> str:
    ran.append(name)
    return f"hello {name}"


@engine.task(queue="mail", priority=10, retry=Retry(attempts=3, first=60, factor=2))
async def send(to: Address, subject: str = "welcome", copies: int = 1) -> None:
    ran.append(to.mail)


@engine.task(retry=Retry(attempts=3, first=60, factor=2))
async def flaky(failures: int, ctx: Context = injected) -> int:
    ran.append(f"attempt {ctx.attempt}")
    if ctx.attempt <= failures:
        raise ConnectionError(f"no answer to attempt {ctx.attempt}")
    return ctx.attempt


@engine.task
async def broken() -> None:
    raise ZeroDivisionError("by nobody")


@engine.task
def in_a_thread(name: str) -> str:
    return f"{name} in {threading.current_thread().name}"


@engine.task(runs_in="process")
def in_a_process(name: str) -> str:
    ran.append(name)  # the test would not see this from another process
    return name.upper()


@engine.task
async def parent(children: int, ctx: Context = injected) -> None:
    ran.append("parent")
    for number in range(children):
        ctx.enqueue(greet.call(f"child {number}"))


@engine.task
async def asks(name: str) -> str:
    answer = await (await greet.enqueue(name)).result()
    return f"{answer}, I am told"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@pytest.fixture
async def tester() -> AsyncIterator[Tester]:
    async with testing.memory(engine, now=MIDNIGHT) as tester:
        yield tester


@pytest.fixture
async def inline() -> AsyncIterator[Tester]:
    async with testing.inline(engine, now=MIDNIGHT) as tester:
        yield tester


class TestMemory:
    async def test_nothing_runs_before_the_drain(self, tester: Tester) -> None:
        handle = await greet.enqueue("Ada")
        assert (await handle.status()).state is State.READY
        (record,) = await tester.drain()
        assert (record.id, record.state, record.result) == (handle.id, State.SUCCEEDED, "hello Ada")
        assert await handle.result() == "hello Ada"

    async def test_each_block_has_a_store_of_its_own(self) -> None:
        async with testing.memory(engine):
            await greet.enqueue("Ada")
        async with testing.memory(engine) as tester:
            assert tester.enqueued() == []

    async def test_the_engine_is_given_back_as_it_was(self, tmp_path: Path) -> None:
        other = Engine(f"sqlite:///{tmp_path}/app.db")
        before = vars(other).copy()
        with pytest.raises(ZeroDivisionError):
            async with testing.memory(other):
                raise ZeroDivisionError
        assert vars(other) == before
        async with other:
            assert (tmp_path / "app.db").exists()

    async def test_the_code_under_test_may_disconnect_and_come_back(self, tester: Tester) -> None:
        async with engine:
            await greet.enqueue("Ada")
        await engine.stop()
        async with engine:
            assert len(await tester.drain()) == 1

    async def test_a_worker_of_the_app_takes_nothing(self, tester: Tester) -> None:
        async with engine.worker(), engine:
            handle = await greet.enqueue("Ada")
            await asyncio.sleep(0.02)
            assert (await handle.status()).state is State.READY
            await tester.drain()
        assert ran == ["Ada"]

    async def test_a_worker_that_drains_does_so(self, tester: Tester) -> None:
        await greet.enqueue("Ada")
        async with engine.worker(drain=True):
            pass
        assert ran == ["Ada"]

    async def test_what_was_enqueued_can_be_seen_after_the_block(self) -> None:
        async with testing.memory(engine) as tester:
            await greet.enqueue("Ada")
        tester.assert_enqueued(greet, "Ada")

    def test_without_an_event_loop(self) -> None:
        with testing.memory(engine) as tester:
            handle = greet.enqueue_sync("Ada")
            tester.assert_enqueued(greet, "Ada")
            assert [record.result for record in tester.drain_sync()] == ["hello Ada"]
            assert handle.result_sync() == "hello Ada"

    def test_without_an_event_loop_inline(self) -> None:
        with testing.inline(engine):
            assert greet.enqueue_sync("Ada").result_sync() == "hello Ada"

    def test_the_clock_moves_without_an_event_loop(self) -> None:
        with testing.memory(engine) as tester:
            greet.with_options(delay=60).enqueue_sync("Ada")
            assert tester.drain_sync() == []
            tester.clock.advance(60)
            assert len(tester.drain_sync()) == 1


class TestDrain:
    async def test_order_is_by_priority_then_first_in_first_out(self, tester: Tester) -> None:
        await greet.enqueue_many([("Ada",), ("Bob",)])
        await greet.with_options(priority=5).enqueue("Eve")
        await tester.drain()
        assert ran == ["Eve", "Ada", "Bob"]

    async def test_children_run_too(self, tester: Tester) -> None:
        await parent.enqueue(2)
        records = await tester.drain()
        assert ran == ["parent", "child 0", "child 1"]
        assert [record.kind for record in records] == ["parent", "greet", "greet"]

    async def test_threads_and_processes_run_in_this_process(self, tester: Tester) -> None:
        first = await in_a_thread.enqueue("Ada")
        second = await in_a_process.enqueue("Bob")
        await tester.drain()
        assert (await first.result()).startswith("Ada in synergon-body")
        assert await second.result() == "BOB"
        assert ran == ["Bob"]

    async def test_arguments_and_results_go_through_json(self, tester: Tester) -> None:
        before = Address("Ada", "ada@example.com")
        handle = await send.enqueue(before)
        before.mail = "changed since"
        await tester.drain()
        assert ran == ["ada@example.com"]
        assert (await handle.status()).arguments == {"to": {"name": "Ada", "mail": "ada@example.com"}}

    async def test_errors_are_in_the_records(self, tester: Tester) -> None:
        await broken.enqueue()
        (record,) = await tester.drain()
        assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)
        assert record.error is not None
        assert record.error.type == "ZeroDivisionError"

    async def test_raise_errors_raises_what_the_body_raised(self, tester: Tester) -> None:
        await broken.enqueue()
        handle = await flaky.enqueue(3)
        with pytest.raises(ZeroDivisionError) as caught:
            await tester.drain(raise_errors=True)
        assert caught.value.__notes__ == [
            "raised by task 1 (broken) in attempt 1 of 1, with {}",
            f"and these failed too:\n  task {handle.id} (flaky): ConnectionError: no answer to attempt 1",
        ]
        assert caught.traceback[-1].name == "broken"
        assert ran == ["attempt 1"], "everything has run before it is raised"

    async def test_raise_errors_is_silent_when_nothing_failed(self, tester: Tester) -> None:
        await greet.enqueue("Ada")
        assert len(await tester.drain(raise_errors=True)) == 1

    async def test_what_a_body_asked_for_is_no_error(self) -> None:
        own = Engine("memory://")

        @own.task(retry=2)
        async def wish(what: str) -> None:
            raise {"discard": Discard("no"), "snooze": Snooze(5), "retry": RetryAfter(5)}[what]

        async with testing.memory(own) as tester:
            await wish.enqueue_many([("discard",), ("snooze",), ("retry",)])
            states = [record.state for record in await tester.drain(raise_errors=True)]
        assert states == [State.FAILED, State.SCHEDULED, State.SCHEDULED]

    async def test_a_timeout_is_raised_as_a_failed_task(self) -> None:
        own = Engine("memory://")

        @own.task(timeout=0.01)
        async def slow() -> None:
            await asyncio.sleep(60)

        async with testing.memory(own) as tester:
            await slow.enqueue()
            with pytest.raises(TaskFailed, match=r"task 1 \(slow\): Timeout: .* in attempt 1 of 1"):
                await tester.drain(raise_errors=True)

    async def test_a_paused_queue_is_left_alone(self, tester: Tester) -> None:
        await engine.pause("mail")
        await send.enqueue(Address("Ada", "a@b.c"))
        assert await tester.drain() == []
        await engine.resume("mail")
        assert len(await tester.drain()) == 1

    async def test_cancelled_and_deleted_tasks_do_not_run(self, tester: Tester) -> None:
        first, second = await greet.enqueue_many([("Ada",), ("Bob",)])
        await first.cancel()
        await engine.delete(second.id)
        assert await tester.drain() == []
        with pytest.raises(TaskDeleted):
            await second.result()

    async def test_a_running_body_can_be_cancelled(self) -> None:
        own = Engine("memory://")

        @own.task
        async def endless() -> None:
            await asyncio.Event().wait()

        @own.task
        async def cancels(task_id: int) -> None:
            await own.cancel(task_id)

        async with testing.memory(own) as tester:
            await cancels.enqueue((await endless.enqueue()).id)
            records = await tester.drain()
        assert [record.state for record in records] == [State.CANCELLED, State.SUCCEEDED]

    async def test_progress_can_be_seen(self) -> None:
        own = Engine("memory://")

        @own.task
        async def half(ctx: Context) -> None:
            ctx.progress(0.5, "half way")
            await asyncio.sleep(0)

        async with testing.memory(own) as tester:
            await half.enqueue()
            (record,) = await tester.drain()
        assert record.progress is not None
        assert record.progress.message == "half way"

    async def test_max_running_holds(self) -> None:
        own = Engine("memory://")
        running: list[int] = []
        most = 0

        @own.task(max_running=2)
        async def careful(number: int) -> None:
            nonlocal most
            running.append(number)
            most = max(most, len(running))
            await asyncio.sleep(0)
            running.remove(number)

        async with testing.memory(own) as tester:
            await careful.enqueue_many([(number,) for number in range(7)])
            assert len(await tester.drain()) == 7
        assert most == 2

    async def test_bodies_do_not_see_context_variables_of_the_caller(self, tester: Tester) -> None:
        user = contextvars.ContextVar("user", default="nobody")

        own = Engine("memory://")

        @own.task
        async def who() -> str:
            return user.get()

        async with testing.memory(own):
            user.set("Ada")
            handle = await who.enqueue()
            assert await handle.result() == "nobody"

    async def test_two_drains_at_once_share_the_work(self, tester: Tester) -> None:
        await greet.enqueue_many([("Ada",), ("Bob",)])
        first, second = await asyncio.gather(tester.drain(), tester.drain())
        assert (len(first), len(second)) == (2, 0)


class TestClock:
    async def test_it_stands_still(self, tester: Tester) -> None:
        assert tester.clock.now == MIDNIGHT
        await asyncio.sleep(0.002)
        assert tester.clock.now == MIDNIGHT

    async def test_it_begins_now_unless_told(self) -> None:
        async with testing.memory(engine) as tester:
            assert abs(tester.clock.now - datetime.now(UTC)) < timedelta(seconds=10)

    @pytest.mark.parametrize("duration", [600, "10m", timedelta(minutes=10)])
    async def test_it_moves_by_any_duration(self, tester: Tester, duration: float | str | timedelta) -> None:
        tester.clock.advance(duration)
        assert tester.clock.now == MIDNIGHT + timedelta(minutes=10)

    async def test_a_delay_follows_it(self, tester: Tester) -> None:
        await greet.with_options(delay="1h").enqueue("Ada")
        assert await tester.drain() == []
        tester.clock.advance("59m")
        assert await tester.drain() == []
        tester.clock.advance("1m")
        (record,) = await tester.drain()
        assert record.started_at == MIDNIGHT + timedelta(hours=1)

    async def test_run_at_follows_it(self, tester: Tester) -> None:
        await greet.with_options(run_at=MIDNIGHT + timedelta(days=400)).enqueue("Ada")
        tester.clock.advance("400d")
        assert len(await tester.drain()) == 1

    async def test_retries_follow_it_without_jitter(self, tester: Tester) -> None:
        handle = await flaky.enqueue(2)
        await tester.drain()
        tester.clock.advance(59.999)
        assert await tester.drain() == []
        tester.clock.advance(0.001)
        await tester.drain()
        tester.clock.advance(120)
        await tester.drain()
        assert await handle.result() == 3
        assert ran == ["attempt 1", "attempt 2", "attempt 3"]

    async def test_expiry_follows_it(self, tester: Tester) -> None:
        await greet.with_options(expires_in=60).enqueue("Ada")
        tester.clock.advance(60)
        (record,) = await tester.drain()
        assert (record.state, record.reason) == (State.FAILED, Reason.EXPIRED)
        assert ran == []

    async def test_whoever_sleeps_by_it_wakes_when_it_is_moved(self, tester: Tester) -> None:
        sleeper = asyncio.ensure_future(tester.clock.sleep(60))
        await asyncio.sleep(0)
        tester.clock.advance(30)
        await asyncio.sleep(0)
        assert not sleeper.done()
        tester.clock.advance(30)
        await asyncio.wait_for(sleeper, 5)

    async def test_a_day_takes_no_time(self, tester: Tester) -> None:
        began = time.monotonic()
        await greet.with_options(delay="1d").enqueue("Ada")
        tester.clock.advance("1d")
        await tester.drain()
        assert time.monotonic() - began < 5

    @pytest.mark.parametrize("duration", [-1, "soon", None])
    async def test_it_refuses_what_is_no_duration(self, tester: Tester, duration: object) -> None:
        with pytest.raises(OptionError, match="advance must be"):
            tester.clock.advance(duration)  # type: ignore[arg-type]

    async def test_it_refuses_a_start_without_a_time_zone(self) -> None:
        with pytest.raises(OptionError, match="now must have a time zone"):
            testing.memory(engine, now=datetime(2030, 1, 1))  # noqa: DTZ001


class TestInline:
    async def test_the_result_is_there_when_enqueue_returns(self, inline: Tester) -> None:
        handle = await greet.enqueue("Ada")
        assert ran == ["Ada"]
        assert (await handle.status()).state is State.SUCCEEDED
        assert await handle.result(timeout=0) == "hello Ada"

    async def test_children_have_run_too(self, inline: Tester) -> None:
        await parent.enqueue(2)
        assert ran == ["parent", "child 0", "child 1"]

    async def test_an_enqueue_inside_a_body_runs_at_once(self, inline: Tester) -> None:
        assert await (await asks.enqueue("Ada")).result() == "hello Ada, I am told"

    async def test_a_thread_may_enqueue_and_wait_for_the_result(self) -> None:
        own = Engine("memory://")

        @own.task
        async def double(number: int) -> int:
            return number * 2

        @own.task
        def sums() -> int:
            return sum(double.enqueue_sync(number).result_sync() for number in range(4))

        async with testing.inline(own):
            assert await (await sums.enqueue()).result() == 12

    async def test_a_list_runs_before_enqueue_returns(self, inline: Tester) -> None:
        await engine.enqueue([greet.call("Ada"), in_a_process.call("Bob")])
        assert sorted(ran) == ["Ada", "Bob"]

    async def test_errors_wait_for_whoever_asks(self, inline: Tester) -> None:
        handle = await broken.enqueue()
        with pytest.raises(TaskFailed, match="ZeroDivisionError: by nobody"):
            await handle.result()

    async def test_delayed_ones_wait_for_the_clock(self, inline: Tester) -> None:
        handle = await greet.with_options(delay=60).enqueue("Ada")
        assert ran == []
        inline.clock.advance(60)
        await inline.drain()
        assert await handle.result() == "hello Ada"

    async def test_a_delayed_one_runs_with_the_next_enqueue_once_it_is_due(self, inline: Tester) -> None:
        await greet.with_options(delay=60).enqueue("Ada")
        inline.clock.advance(60)
        await greet.enqueue("Bob")
        assert ran == ["Ada", "Bob"]

    async def test_no_room_leaves_it_for_later(self) -> None:
        own = Engine("memory://")
        order: list[str] = []

        @own.task(max_running=1)
        async def alone(depth: int) -> None:
            order.append(f"begin {depth}")
            if depth:
                await alone.enqueue(depth - 1)
            order.append(f"end {depth}")

        async with testing.inline(own):
            await alone.enqueue(2)
        assert order == ["begin 2", "end 2", "begin 1", "end 1", "begin 0", "end 0"]


class TestNothingHangs:
    async def test_a_result_runs_what_is_due(self, tester: Tester) -> None:
        assert await (await greet.enqueue("Ada")).result() == "hello Ada"

    async def test_a_result_that_needs_the_clock_says_so(self, tester: Tester) -> None:
        handle = await greet.with_options(delay=60).enqueue("Ada")
        with pytest.raises(ResultTimeout, match=r"task 1 \(greet\) .* due in 60 s by the test's clock"):
            await handle.result()

    async def test_a_result_that_waits_for_a_retry_says_so(self, tester: Tester) -> None:
        handle = await flaky.enqueue(1)
        with pytest.raises(ResultTimeout, match="attempt 1 has failed, and it is due in 60 s"):
            await handle.result(timeout=3600)

    async def test_a_result_that_nobody_here_can_make_says_so(self, tester: Tester) -> None:
        (handle,) = await engine.enqueue([engine.call("somebody.elses", number=1)])
        with pytest.raises(ResultTimeout, match="not registered"):
            await handle.result()

    async def test_a_result_from_a_paused_queue_says_so(self, tester: Tester) -> None:
        await engine.pause("default")
        with pytest.raises(ResultTimeout, match="paused"):
            await (await greet.enqueue("Ada")).result()

    async def test_a_body_may_wait_for_another(self, tester: Tester) -> None:
        handle = await asks.enqueue("Ada")
        await tester.drain()
        assert await handle.result() == "hello Ada, I am told"

    async def test_bodies_that_wait_for_each_other_are_told(self) -> None:
        own = Engine("memory://")

        @own.task
        async def waits_for(task_id: int) -> None:
            await own.wait(task_id)

        async with testing.memory(own) as tester:
            await waits_for.enqueue(2)
            await waits_for.enqueue(1)
            await waits_for.enqueue(3)
            records = await tester.drain()
        assert [record.error and record.error.type for record in records] == ["ResultTimeout"] * 3

    async def test_a_body_that_takes_the_only_place_is_told(self) -> None:
        own = Engine("memory://", concurrency=1)

        @own.task
        async def one() -> int:
            return 1

        @own.task
        async def needs_one() -> int:
            return await (await one.enqueue()).result()

        async with testing.memory(own) as tester:
            handle = await needs_one.enqueue()
            await tester.drain()
            with pytest.raises(TaskFailed, match="take all places"):
                await handle.result()

    async def test_a_task_that_is_due_for_ever_meets_the_limit(self) -> None:
        own = Engine("memory://")

        @own.task
        async def again() -> None:
            raise Snooze(0)

        async with testing.memory(own) as tester:
            handle = await again.enqueue()
            with pytest.raises(SynergonError, match=r"has run 50 attempts and more is due \(again\)"):
                await tester.drain(limit=50)
            assert (await handle.status()).state is State.READY

    async def test_a_drain_can_be_broken_off(self) -> None:
        own = Engine("memory://")

        @own.task
        async def endless() -> None:
            await asyncio.Event().wait()

        async with testing.memory(own) as tester:
            handle = await endless.enqueue()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await tester.drain()
            record = await handle.status()
            assert (record.state, record.attempts) == (State.READY, 0)


class TestAssertions:
    async def test_arguments_are_given_as_to_the_task(self, tester: Tester) -> None:
        address = Address("Ada", "a@b.c")
        await send.enqueue(address, copies=2)
        tester.assert_enqueued(send)
        tester.assert_enqueued("send")
        tester.assert_enqueued(send, address)
        tester.assert_enqueued(send, to=address, copies=2)
        tester.assert_enqueued(send, {"name": "Ada", "mail": "a@b.c"})
        tester.assert_enqueued(send, mock.ANY, copies=pytest.approx(2))
        tester.assert_not_enqueued(send, Address("Bob", "a@b.c"))
        tester.assert_not_enqueued(send, copies=3)
        tester.assert_not_enqueued(send, copies=object())

    async def test_defaults_count_as_given(self, tester: Tester) -> None:
        await send.enqueue(Address("Ada", "a@b.c"))
        tester.assert_enqueued(send, subject="welcome", copies=1)
        tester.assert_not_enqueued(send, subject="goodbye")

    async def test_it_returns_the_tasks(self, tester: Tester) -> None:
        await greet.enqueue_many([("Ada",), ("Bob",)])
        assert [record.arguments["name"] for record in tester.assert_enqueued(greet, count=2)] == ["Ada", "Bob"]

    async def test_queue_and_count_are_looked_at(self, tester: Tester) -> None:
        await greet.enqueue("Ada")
        await greet.with_options(queue="slow").enqueue("Ada")
        tester.assert_enqueued(greet, "Ada", count=2)
        tester.assert_enqueued(greet, "Ada", queue="slow", count=1)
        tester.assert_enqueued(greet, "Bob", count=0)
        tester.assert_not_enqueued(greet, "Ada", queue="mail")

    async def test_what_has_run_and_children_are_found_too(self, tester: Tester) -> None:
        await parent.enqueue(1)
        await tester.drain()
        tester.assert_enqueued(parent, 1)
        tester.assert_enqueued(greet, "child 0")
        assert [record.kind for record in tester.enqueued()] == ["parent", "greet"]
        assert [record.kind for record in tester.enqueued("greet")] == ["greet"]
        assert [record.kind for record in tester.enqueued(parent)] == ["parent"]

    async def test_a_kind_whose_function_is_elsewhere(self, tester: Tester) -> None:
        tester.assert_not_enqueued("billing.invoice")
        await engine.enqueue([engine.call("billing.invoice", order=42)])
        tester.assert_enqueued("billing.invoice", order=42)
        with pytest.raises(PayloadError, match="name its arguments"):
            tester.assert_enqueued("billing.invoice", 42)

    async def test_a_failure_shows_what_is_enqueued(self, tester: Tester) -> None:
        await greet.with_options(delay=90).enqueue("Bob")
        await send.enqueue(Address("Ada", "a@b.c"))
        await tester.drain()
        with pytest.raises(AssertionError) as caught:
            tester.assert_enqueued(send, copies=2)
        assert str(caught.value).splitlines() == [
            "send(copies=2) was not enqueued; enqueued were:",
            "     2  send(to={'name': 'Ada', 'mail': 'a@b.c'})  [queue mail, succeeded]",
            "     1  greet(name='Bob')  [queue default, scheduled, due in 90 s]",
        ]

    async def test_a_failure_tells_how_often(self, tester: Tester) -> None:
        await greet.enqueue("Ada")
        with pytest.raises(AssertionError, match=r"greet\(\) in queue 'default' was enqueued once, not 3 times; enq"):
            tester.assert_enqueued(greet, queue="default", count=3)
        with pytest.raises(AssertionError, match=r"greet\(name='Ada'\) was enqueued once; enqueued was:\n"):
            tester.assert_not_enqueued(greet, "Ada")

    async def test_a_failure_with_nothing_enqueued_says_that(self, tester: Tester) -> None:
        with pytest.raises(AssertionError, match="nothing was enqueued"):
            tester.assert_enqueued(greet)

    async def test_a_failure_does_not_list_thousands(self, tester: Tester) -> None:
        await greet.enqueue_many([(str(number),) for number in range(1000)])
        with pytest.raises(AssertionError) as caught:
            tester.assert_not_enqueued(greet)
        assert str(caught.value).splitlines()[-1] == "  ... and 980 more"
        assert len(str(caught.value).splitlines()) == 22

    async def test_mistakes_are_refused(self, tester: Tester) -> None:
        other = Engine("memory://")

        @other.task
        async def elsewhere() -> None: ...

        with pytest.raises(KindError, match="no kind 'gret'; did you mean 'greet'"):
            tester.assert_not_enqueued("gret")
        with pytest.raises(OptionError, match="'elsewhere' belongs to"):
            tester.assert_not_enqueued(elsewhere)
        with pytest.raises(OptionError, match="a task or the name of a kind"):
            tester.assert_enqueued(len)  # type: ignore[arg-type]
        with pytest.raises(PayloadError, match=r"'greet' has no argument 'nmae'; it takes \(name\)"):
            tester.assert_not_enqueued(greet, nmae="Ada")
        with pytest.raises(PayloadError, match="takes 1 arguments, got 2"):
            tester.assert_not_enqueued(greet, "Ada", "Bob")
        with pytest.raises(PayloadError, match="two values for name"):
            tester.assert_not_enqueued(greet, "Ada", name="Bob")
        with pytest.raises(OptionError, match="count must be"):
            tester.assert_enqueued(greet, count=-1)


class TestMachines:
    async def test_a_test_runs_what_it_enqueues_whatever_machine_it_needs_elsewhere(self) -> None:
        own = Engine("memory://")

        @own.task(cost=Resources(gpu=8), needs={"zone:eu"})
        async def train() -> str:
            return "trained"

        @own.task(urgent=True, cost=Resources(gpu=8))
        async def hurry() -> str:
            return "hurried"

        async with testing.memory(own) as tester:
            await train.enqueue()
            await train.with_options(forbids={"zone:eu"}, needs=(), cost=Resources(custom={"moon": 1})).enqueue()
            await hurry.enqueue()
            assert [record.result for record in await tester.drain()] == ["hurried", "trained", "trained"]


class TestWrongUses:
    def test_what_is_no_engine(self) -> None:
        with pytest.raises(OptionError, match="needs an Engine, got 'app'"):
            testing.memory("app")  # type: ignore[arg-type]

    async def test_a_block_inside_a_block(self, tester: Tester) -> None:
        with pytest.raises(SynergonError, match="under test already"):
            async with testing.inline(engine):
                pass
        assert (await (await greet.enqueue("Ada")).status()).state is State.READY

    async def test_an_engine_that_is_connected(self) -> None:
        own = Engine("memory://")
        async with own:
            with pytest.raises(SynergonError, match="connected already; begin the test first"):
                async with testing.memory(own):
                    pass

    async def test_a_drain_outside_the_block(self) -> None:
        tester = testing.memory(engine)
        for _ in ("before", "after"):
            with pytest.raises(SynergonError, match="inside the block"):
                await tester.drain()
            with pytest.raises(SynergonError, match="inside the block"):
                tester.drain_sync()
            if not tester.enqueued():
                async with tester:
                    await greet.enqueue("Ada")

    async def test_a_drain_inside_a_body(self) -> None:
        own = Engine("memory://")

        async with testing.memory(own) as tester:

            @own.task
            async def drains() -> None:
                await tester.drain()

            handle = await drains.enqueue()
            with pytest.raises(TaskFailed, match="would wait for that body"):
                await handle.result()

    async def test_a_limit_that_is_no_number(self, tester: Tester) -> None:
        with pytest.raises(OptionError, match="limit must be"):
            await tester.drain(limit=0)

    async def test_a_connection_left_open(self) -> None:
        own = Engine("memory://")
        with pytest.raises(SynergonError, match="left the engine connected"), testing.memory(own):
            await own.connect()
        await own.stop()

    async def test_transactions_of_a_database_need_one(self, tester: Tester) -> None:
        with pytest.raises(NotAvailable, match="no transactions"):
            await greet.with_options(conn=object()).enqueue("Ada")
