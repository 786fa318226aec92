"""What the record of a task tells: its result, progress, tags, meta, errors and times."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, ended, make_troubled, until

from synergon import Cancel, Context, Engine, OptionError, Progress, Retry, State, TaskNotFound, injected


async def test_a_succeeded_task_keeps_its_result_and_its_times(engine: Engine) -> None:
    @engine.task(queue="mail")
    async def add(first: int, second: int) -> dict[str, int]:
        return {"sum": first + second}

    async with engine.worker() as node:
        handle = await add.enqueue(1, second=2)
        assert await handle.result(PATIENCE_SECONDS) == {"sum": 3}
        record = await engine.get(handle.id)
        assert record == await handle.status()
        assert record.node_id == node.id
    assert (record.kind, record.queue, record.state, record.reason) == ("add", "mail", State.SUCCEEDED, None)
    assert record.arguments == {"first": 1, "second": 2}
    assert record.result == {"sum": 3}
    assert (record.attempts, record.crashes, record.claim_no, record.errors) == (1, 0, 1, ())
    assert record.started_at is not None
    assert record.finished_at is not None
    assert record.enqueued_at <= record.started_at <= record.finished_at
    assert record.enqueued_at.utcoffset() == timedelta(0)


async def test_a_result_is_decoded_from_the_very_json_that_was_stored(engine: Engine) -> None:
    """Nothing decodes and encodes it in between, which would lose the precision of the number."""
    precise = b'{"ratio": 0.10000000000000000000000001}'

    @engine.task
    async def measure() -> msgspec.Raw:
        return msgspec.Raw(precise)

    async with engine.worker():
        handle = await measure.enqueue()
        assert bytes(await handle.result(PATIENCE_SECONDS)) == precise
        assert bytes(engine.result_of(await handle.status(), None)) == precise


async def test_tags_and_meta_come_to_the_body_and_stay_with_the_record(engine: Engine) -> None:
    @engine.task
    async def look(ctx: Context) -> list[object]:
        return [list(ctx.tags), ctx.meta, ctx.queue, ctx.kind]

    async with engine.worker():
        options = look.with_options(tags=["onboarding", "eu"], meta={"tenant": 7, "deep": [{"a": None}]})
        handle = await options.enqueue()
        plain = await look.enqueue()
        seen = await handle.result(PATIENCE_SECONDS)
        assert seen == [["onboarding", "eu"], {"tenant": 7, "deep": [{"a": None}]}, "default", "look"]
        assert await plain.result(PATIENCE_SECONDS) == [[], {}, "default", "look"]
        record = await handle.status()
        assert (record.tags, record.meta["tenant"]) == (("onboarding", "eu"), 7)
        assert [task.id for task in await engine.tasks(tag="eu")] == [handle.id]


async def test_every_failed_attempt_leaves_its_error_with_a_traceback(engine: Engine) -> None:
    @engine.task(retry=Retry(attempts=3, first=0))
    async def divide(ctx: Context) -> None:
        raise ZeroDivisionError(f"attempt {ctx.attempt}") from KeyError("the reason")

    async with engine.worker() as node:
        record = await ended(await divide.enqueue())
    assert [error.message for error in record.errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert record.error == record.errors[-1]
    for error in record.errors:
        assert error.type == "ZeroDivisionError"
        assert error.node_id == node.id
        assert error.at is not None
        assert "in divide" in error.traceback
        assert "KeyError: 'the reason'" in error.traceback
        assert __file__ in error.traceback


async def test_an_error_of_any_size_and_shape_can_be_kept(engine: Engine) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    @engine.task
    async def fail(how: str) -> None:
        if how == "huge":
            raise ValueError("x" * 5_000_000)
        if how == "unprintable":
            raise Unprintable
        raise ValueError("\ud800 is half a character, \x00 is none")

    async with engine.worker():
        huge, unprintable, broken = [await ended(await fail.enqueue(how)) for how in ("huge", "unprintable", "broken")]
    assert huge.error is not None
    assert len(huge.error.message) + len(huge.error.traceback) < 50_000
    assert unprintable.error is not None
    assert unprintable.error.type.endswith("Unprintable")
    assert broken.error is not None
    assert "half a character" in broken.error.message


async def test_errors_of_a_process_body_come_back_whole(engine: Engine) -> None:
    fail = on(engine, process_bodies.fail)
    async with engine.worker():
        record = await ended(await fail.enqueue("from far away"))
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("ValueError", "from far away")
    assert "in fail" in record.error.traceback


# ---------------------------------------------------------------- progress


async def test_progress_is_stored_while_the_body_runs(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def work(ctx: Context) -> None:
        ctx.progress(0.25, "a quarter")
        await gate.hold()

    async with engine.worker():
        handle = await work.enqueue()

        async def is_stored() -> bool:
            return (await handle.status()).progress == Progress(fraction=0.25, message="a quarter")

        await until(is_stored)
        assert (await handle.status()).state is State.RUNNING
        gate.open()
        await handle.result(PATIENCE_SECONDS)


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_the_last_word_about_progress_is_kept(engine: Engine, ends: str) -> None:
    @engine.task
    async def on_loop(ctx: Context) -> None:
        for percent in range(101):
            ctx.progress(percent / 100, f"{percent} %")
        if ends == "badly":
            raise ValueError("at the very end")

    @engine.task
    def in_thread(ctx: Context) -> None:
        for percent in range(101):
            ctx.progress(percent / 100, f"{percent} %")
            time.sleep(0.001)
        if ends == "badly":
            raise ValueError("at the very end")

    async with engine.worker():
        for body in (on_loop, in_thread):
            record = await ended(await body.enqueue())
            assert record.progress == Progress(fraction=1.0, message="100 %")


async def test_progress_that_was_reported_during_an_outage_is_stored_afterwards(
    new_engine: NewEngine, url: str
) -> None:
    engine = new_engine(url)
    stores = make_troubled(engine)
    gate = Gate()

    @engine.task
    async def work(ctx: Context) -> None:
        ctx.progress(0.5, "half way")
        await gate.hold()

    async with engine.worker():
        with stores[-1].away("report"):
            handle = await work.enqueue()
            await gate.until_reached()
            await until(lambda: stores[-1].calls["report"] >= 1)
        gate.open()
        assert (await ended(handle)).progress == Progress(fraction=0.5, message="half way")


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), True, "half", None])
async def test_progress_that_makes_no_sense_is_refused_in_the_body(engine: Engine, fraction: object) -> None:
    said: list[str] = []

    @engine.task
    async def work(ctx: Context) -> None:
        with pytest.raises(OptionError) as refused:
            ctx.progress(fraction)  # type: ignore[arg-type]  # wrong on purpose
        said.append(str(refused.value))

    async with engine.worker():
        await (await work.enqueue()).result(PATIENCE_SECONDS)
    assert said == [f"progress must be a number from 0 to 1, got {fraction!r}"]


async def test_words_that_hold_half_a_character_harm_nobody(engine: Engine) -> None:
    gate = Gate()

    @engine.task
    async def work(how: str, ctx: Context = injected) -> str:
        ctx.progress(0.5, "half \ud800")
        if how == "cancel":
            raise Cancel("half \ud800")
        if how == "hold":
            await gate.hold()
        return "done"

    async with engine.worker():
        done = await ended(await work.enqueue("done"))
        cancelled = await ended(await work.enqueue("cancel"))
        handle = await work.enqueue("hold")
        await gate.until_reached()
        await handle.cancel("half \ud800")
        cancelled_from_outside = await ended(handle)
    assert (done.state, done.result) == (State.SUCCEEDED, "done")
    assert done.progress is not None
    assert done.progress.message.startswith("half ")
    for record in (cancelled, cancelled_from_outside):
        assert record.state is State.CANCELLED
        assert record.error is not None
        assert record.error.message.startswith("half ")


# ---------------------------------------------------------------- the context


async def test_a_process_body_sees_its_context_and_reports_progress(engine: Engine, tmp_path: Path) -> None:
    look_around = on(engine, process_bodies.look_around)
    async with engine.worker():
        options = look_around.with_options(tags=["far"], meta={"a": 1})
        handle = await options.enqueue()
        seen = await handle.result(PATIENCE_SECONDS)
        record = await handle.status()
    assert seen == [handle.id, 1, 1, ["far"], {"a": 1}, True]
    assert record.progress == Progress(fraction=1.0, message="there")


async def test_a_body_can_ask_whether_its_claim_still_counts(engine: Engine) -> None:
    gate, thread_gate = Gate(), ThreadGate()

    @engine.task
    async def on_loop(ctx: Context) -> tuple[bool, bool]:
        before = await ctx.still_owned()
        try:
            await gate.hold()
        except asyncio.CancelledError:
            seen.append(await ctx.still_owned())
        return before, True

    @engine.task
    def in_thread(ctx: Context) -> None:
        seen.append(ctx.still_owned_sync())
        thread_gate.hold()
        seen.append(ctx.still_owned_sync())

    seen: list[bool] = []
    async with engine.worker():
        handle = await on_loop.enqueue()
        await gate.until_reached()
        await handle.cancel()
        await ended(handle)
        assert seen == [False]
        other = await in_thread.enqueue()
        await thread_gate.until_reached()
        await other.cancel()
        thread_gate.open()
        await ended(other)
    assert seen == [False, True, False]


async def test_a_coroutine_that_asks_in_the_way_of_threads_is_told_so_and_the_loop_goes_on(engine: Engine) -> None:
    @engine.task
    async def wrong(ctx: Context) -> None:
        ctx.still_owned_sync()

    async with engine.worker():
        record = await ended(await wrong.enqueue())
    assert record.error is not None
    assert "await" in record.error.message


# ---------------------------------------------------------------- reading


async def test_tasks_are_listed_by_what_they_are(engine: Engine) -> None:
    @engine.task(queue="mail")
    async def send(number: int) -> None: ...

    @engine.task
    async def count(number: int) -> None: ...

    async with engine:
        sent = await send.enqueue_many([(number,) for number in range(5)])
        counted = await count.with_options(key="42").enqueue(1)
        await sent[0].cancel()
        assert [task.id for task in await engine.tasks(kind="send")] == [handle.id for handle in reversed(sent)]
        assert [task.id for task in await engine.tasks(queue="default")] == [counted.id]
        assert [task.id for task in await engine.tasks(state="cancelled")] == [sent[0].id]
        assert [task.id for task in await engine.tasks(key="42")] == [counted.id]
        assert len(await engine.tasks(state=["ready", State.CANCELLED])) == 6
        page = await engine.tasks(limit=4)
        rest = await engine.tasks(limit=4, after=page.next)
        assert [task.id for task in (*page, *rest)] == [counted.id, *(handle.id for handle in reversed(sent))]
        assert rest.next is None


async def test_counts_are_exact_by_kind_and_queue(engine: Engine) -> None:
    @engine.task(queue="mail")
    async def send() -> None: ...

    @engine.task
    async def count() -> None: ...

    async with engine:
        await send.enqueue_many([()] * 3)
        await count.with_options(delay=60).enqueue()
        everything = await engine.counts()
        assert everything[State.READY] == 3
        assert everything[State.SCHEDULED] == 1
        assert sum(everything.values()) == 4
        assert (await engine.counts(kind="send"))[State.SCHEDULED] == 0
        assert (await engine.counts(queue="mail"))[State.READY] == 3
        by_name = {queue.name: queue for queue in await engine.queues()}
        assert by_name["mail"].counts[State.READY] == 3


async def test_what_cannot_be_listed_is_refused(engine: Engine) -> None:
    async with engine:
        with pytest.raises(OptionError, match="a task's state is one of waiting, scheduled"):
            await engine.tasks(state="sleeping")
        for limit in (0, -1, 10_001, True, "ten"):
            with pytest.raises(OptionError, match="limit must be a whole number from 1 to 10000"):
                await engine.tasks(limit=limit)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(TaskNotFound, match="there is no task 99: it never existed"):
            await engine.get(99)
