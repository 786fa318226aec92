"""Batches: one item is enqueued, a list of them is run, and each has an end of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.every_store import every_url  # noqa: F401
from tests.node.process_functions import on
from tests.support import PATIENCE_SECONDS, Gate, all_tasks, ended, until, until_state

from synergon import (
    Batch,
    BatchErrors,
    Cancel,
    Context,
    Discard,
    Engine,
    Event,
    Handle,
    OptionError,
    PayloadError,
    Rate,
    Reason,
    Resources,
    Retry,
    RetryAfter,
    Snooze,
    State,
    TaskFailed,
    Why,
)


@dataclass
class Hook:
    customer: str
    number: int


async def results(handles: list[Handle[Any]]) -> list[Any]:
    return list(await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles)))


async def states(handles: list[Handle[Any]]) -> list[State]:
    return [(await ended(handle)).state for handle in handles]


# ---------------------------------------------------------------- when and what


async def test_a_list_of_items_is_run_and_each_has_its_result(engine: Engine) -> None:
    seen: list[list[int]] = []

    @engine.task(batch=Batch(size=3, wait=0.1))
    async def square(numbers: list[int]) -> list[int]:
        seen.append(numbers)
        return [number**2 for number in numbers]

    async with engine, engine.worker():
        handles = await square.enqueue_many([(number,) for number in range(7)])
        assert await results(handles) == [0, 1, 4, 9, 16, 25, 36]
    assert seen == [[0, 1, 2], [3, 4, 5], [6]]


async def test_single_items_make_a_batch_too(engine: Engine) -> None:
    seen: list[list[int]] = []

    @engine.task(batch=Batch(size=4, wait="1h"))
    def note(numbers: list[int]) -> None:
        seen.append(numbers)

    async with engine, engine.worker():
        handles = [await note.enqueue(number) for number in range(4)]
        assert await results(handles) == [None] * 4
    assert seen == [[0, 1, 2, 3]]


async def test_a_call_with_other_kinds_completes_a_batch(engine: Engine) -> None:
    @engine.task(batch=Batch(size=2, wait="1h"))
    async def note(numbers: list[int]) -> None: ...

    @engine.task
    async def other() -> None: ...

    async with engine, engine.worker():
        first = await note.enqueue(1)
        await results([first, *await engine.enqueue([note.call(2), other.call()])])


@pytest.mark.parametrize("fired_by", ["the worker", "an operator"])
@pytest.mark.parametrize(("size", "wait"), [(50, 0.1), (2, "1h")], ids=["due", "complete"])
async def test_items_of_a_schedule_start_without_a_sweep(
    engine: Engine, fired_by: str, size: int, wait: float | str
) -> None:
    """The batch is due soon, or the item of the schedule completes it."""
    seen: list[list[int]] = []

    @engine.task(batch=Batch(size=size, wait=wait))
    async def note(numbers: list[int]) -> None:
        seen.append(numbers)

    @engine.task
    async def other() -> None: ...

    async with engine:
        starts_at = datetime.now(UTC) + (timedelta(seconds=2) if fired_by == "the worker" else timedelta(hours=1))
        await engine.schedules.create("items", note.call(2), every="1h", starts_at=starts_at)
        async with engine.worker():
            await (await other.enqueue()).result(PATIENCE_SECONDS)  # the worker has started, and has swept
            if size == 2:
                await note.enqueue(1)
            if fired_by == "an operator":
                await engine.schedules.run_now("items")
            await until(lambda: bool(seen))
    assert [sorted(batch) for batch in seen] == [[1, 2] if size == 2 else [2]]


async def test_items_of_a_schedule_that_another_process_runs_start_without_a_sweep(
    new_engine: NewEngine, sqlite_url: str
) -> None:
    worker, producer = new_engine(sqlite_url), new_engine(sqlite_url)

    @worker.task(batch=Batch(size=50, wait=0.1))
    async def note(numbers: list[int]) -> None: ...

    @worker.task
    async def other() -> None: ...

    async with worker, producer:
        await worker.schedules.create("items", note.call(1), every="1h")
        async with worker.worker():
            await (await other.enqueue()).result(PATIENCE_SECONDS)  # the worker has started, and has swept
            handle = await producer.schedules.run_now("items")
            assert handle is not None
            await ended(handle)


async def test_items_are_batched_by_their_key(engine: Engine) -> None:
    seen: list[list[Hook]] = []

    @engine.task(batch=Batch(size=2, wait="1h", by="{customer}"), title="Hook {number}")
    async def post(ctx: Context, hooks: list[Hook]) -> None:
        seen.append(hooks)

    async with engine, engine.worker():
        hooks = [Hook("ada", 1), Hook("bob", 2), Hook("ada", 3), Hook("bob", 4)]
        handles = [await post.enqueue(hook) for hook in hooks]
        await results(handles)
        assert (await handles[0].status()).title == "Hook 1"
    assert sorted(seen, key=lambda batch: batch[0].number) == [[hooks[0], hooks[2]], [hooks[1], hooks[3]]]


async def test_a_producer_without_the_function_names_the_item(engine: Engine) -> None:
    seen: list[list[Hook]] = []

    @engine.task(batch=Batch(size=2, wait="1h", by=lambda item: item.customer))
    async def post(hooks: list[Hook]) -> None:
        seen.append(hooks)

    async with engine:
        producer = Engine(engine.settings.url)
        async with producer:
            await producer.enqueue(
                [producer.call("post", hooks={"customer": "ada", "number": number}) for number in (1, 2)]
            )
        async with engine.worker():
            await until(lambda: bool(seen))
    assert seen == [[Hook("ada", 1), Hook("ada", 2)]]


async def test_a_batch_counts_as_one_execution(engine: Engine) -> None:
    gate, running = Gate(), [0, 0]

    @engine.task(batch=Batch(size=10), cost=Resources(custom={"license": 1}), max_running=1)
    async def hold(numbers: list[int]) -> None:
        running[0] += 1
        running[1] = max(running)
        await gate.hold()
        running[0] -= 1

    async with engine, engine.worker(concurrency=1, resources=Resources(custom={"license": 1})):
        handles = await hold.enqueue_many([(number,) for number in range(20)])
        await gate.until_reached()
        assert (await engine.counts())[State.RUNNING] == 10
        assert len({(await handle.status()).batch_id for handle in handles[:10]}) == 1
        gate.open()
        await results(handles)
    assert running[1] == 1


async def test_explain_says_what_a_batch_waits_for(engine: Engine) -> None:
    @engine.task(batch=Batch(size=2, wait="1h"))
    async def post(hooks: list[int]) -> None: ...

    async with engine:
        first = await post.enqueue(1)
        waiting = await engine.explain(first.id)
        assert waiting.sentence.startswith("waits: its batch has 1 of 2 tasks, and starts in ")
        (cause,) = waiting.causes
        assert (cause.why, cause.in_use, cause.of) == (Why.BATCH, 1, 2)
        second = await post.enqueue(2)
        assert (await engine.explain(first.id)).state is State.READY
        assert "its batch can start" in (await engine.explain(second.id)).sentence
        async with engine.worker():
            await results([first, second])


async def test_events_are_those_of_the_items(engine: Engine) -> None:
    events: list[Event] = []
    starts: list[int] = []

    @engine.on_event
    def note(event: Event) -> None:
        events.append(event)

    def on_start(task: Any, server: Any) -> None:
        starts.append(task.id)

    @engine.task(batch=Batch(size=2), on_start=on_start)
    async def post(hooks: list[int]) -> None: ...

    async with engine, engine.worker():
        handles = await post.enqueue_many([(1,), (2,)])
        await results(handles)
        await until(lambda: len(events) == 4 and len(starts) == 2)
    assert sorted(event.task_id for event in events if event.name == "succeeded") == [handle.id for handle in handles]
    assert sorted(starts) == [handle.id for handle in handles]


# ---------------------------------------------------------------- how items end


async def test_some_items_may_fail(engine: Engine) -> None:
    runs: list[list[int]] = []

    @engine.task(batch=Batch(size=4, wait=0.05), retry=Retry(attempts=2, first=0.01))
    async def post(numbers: list[int]) -> None:
        runs.append(numbers)
        raise BatchErrors({index: ValueError(number) for index, number in enumerate(numbers) if number % 2})

    async with engine, engine.worker():
        handles = await post.enqueue_many([(number,) for number in (1, 2, 4, 5)])
        assert await states(handles) == [State.FAILED, State.SUCCEEDED, State.SUCCEEDED, State.FAILED]
        records = [await handle.status() for handle in handles]
    assert [record.attempts for record in records] == [2, 1, 1, 2]
    assert records[0].reason is Reason.EXHAUSTED
    assert [error.message for error in records[0].errors] == ["1", "1"]
    assert runs == [[1, 2, 4, 5], [1, 5]]


async def test_control_exceptions_of_items(engine: Engine) -> None:
    @engine.task(batch=Batch(size=4), retry=5)
    async def post(numbers: list[int]) -> None:
        raise BatchErrors({0: Discard("no"), 1: Cancel("enough"), 2: Snooze(3600)})

    async with engine, engine.worker():
        handles = await post.enqueue_many([(number,) for number in range(4)])
        await until_state(handles[2], State.SCHEDULED)
        assert await states([handles[0], handles[1], handles[3]]) == [State.FAILED, State.CANCELLED, State.SUCCEEDED]
        assert (await handles[2].status()).attempts == 0


@pytest.mark.parametrize(("control", "attempts"), [(Snooze(3600), 0), (RetryAfter(3600), 1)])
async def test_control_exceptions_concern_all(engine: Engine, control: Exception, attempts: int) -> None:
    @engine.task(batch=Batch(size=2), retry=5)
    async def post(numbers: list[int]) -> None:
        raise control

    async with engine, engine.worker():
        for handle in await post.enqueue_many([(1,), (2,)]):
            assert (await until_state(handle, State.SCHEDULED)).attempts == attempts


@pytest.mark.parametrize("returned", [[1], [1, 2, 3], {"a": 1}])
async def test_a_wrong_number_of_results_fails_all(engine: Engine, returned: Any) -> None:
    @engine.task(batch=Batch(size=2))
    async def post(numbers: list[int]) -> list[Any]:
        return returned  # type: ignore[no-any-return]

    async with engine, engine.worker():
        for handle in await post.enqueue_many([(1,), (2,)]):
            with pytest.raises(TaskFailed, match="ran a batch of 2 items and returned"):
                await handle.result(PATIENCE_SECONDS)


async def test_an_index_that_does_not_exist_fails_all(engine: Engine) -> None:
    @engine.task(batch=Batch(size=2))
    async def post(numbers: list[int]) -> None:
        raise BatchErrors({2: ValueError()})

    async with engine, engine.worker():
        for handle in await post.enqueue_many([(1,), (2,)]):
            with pytest.raises(TaskFailed, match="batch of 2 items and raised BatchErrors for item 2"):
                await handle.result(PATIENCE_SECONDS)


async def test_one_result_that_cannot_be_stored_fails_alone(engine: Engine) -> None:
    @engine.task(batch=Batch(size=2))
    async def post(numbers: list[int]) -> list[Any]:
        return [1, object()]

    async with engine, engine.worker():
        handles = await post.enqueue_many([(1,), (2,)])
        assert await states(handles) == [State.SUCCEEDED, State.FAILED]


async def test_a_payload_that_does_not_fit_harms_its_item_alone(engine: Engine) -> None:
    seen: list[list[int]] = []

    @engine.task(batch=Batch(size=3, wait="1h"))
    async def post(numbers: list[int]) -> None:
        seen.append(numbers)

    async with engine:
        good = [await post.enqueue(1), await post.enqueue(2)]
        store = engine._connection.store
        task = post.call(3).to_new_task()
        (bad,) = await store.insert([msgspec.structs.replace(task, payload=b'{"numbers":"three"}')])
        async with engine.worker():
            await results(good)
            record = await engine.wait(bad.id, timeout=PATIENCE_SECONDS)
    assert seen == [[1, 2]]
    assert record.state is State.FAILED
    assert "does not fit its signature" in record.errors[0].message


async def test_a_timeout_concerns_all(engine: Engine) -> None:
    @engine.task(batch=Batch(size=2), timeout=0.05)
    async def post(numbers: list[int]) -> None:
        await asyncio.sleep(3600)

    async with engine, engine.worker():
        handles = await post.enqueue_many([(1,), (2,)])
        assert [(await ended(handle)).reason for handle in handles] == [Reason.TIMEOUT] * 2


async def test_the_context_is_that_of_the_batch(engine: Engine) -> None:
    gate, child_runs = Gate(), []

    @engine.task
    async def child(number: int) -> None:
        child_runs.append(number)

    @engine.task(batch=Batch(size=2))
    async def post(numbers: list[int], ctx: Context) -> None:
        ctx.progress(0.5, "half")
        ctx.enqueue(child.call(len(numbers)))
        assert await ctx.still_owned()
        await gate.hold()

    async with engine, engine.worker():
        handles = await post.enqueue_many([(1,), (2,)])
        await gate.until_reached()

        async def is_told() -> bool:
            return None not in [(await handle.status()).progress for handle in handles]

        await until(is_told)
        gate.open()
        await results(handles)
        await until(lambda: bool(child_runs))
    assert child_runs == [2]


# ---------------------------------------------------------------- cancel, stop, transactions


async def test_cancelling_one_discards_its_result(engine: Engine) -> None:
    gate = Gate()

    @engine.task(batch=Batch(size=3))
    async def post(numbers: list[int]) -> list[int]:
        await gate.hold()
        return numbers

    async with engine, engine.worker():
        handles = await post.enqueue_many([(1,), (2,), (3,)])
        await gate.until_reached()
        await handles[0].cancel()
        await handles[2].cancel()
        gate.open()
        assert await handles[1].result(PATIENCE_SECONDS) == 2
        assert await states(handles) == [State.CANCELLED, State.SUCCEEDED, State.CANCELLED]


async def test_cancelling_all_interrupts(engine: Engine) -> None:
    gate, was_cancelled = Gate(), []

    @engine.task(batch=Batch(size=2))
    async def post(numbers: list[int]) -> None:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            was_cancelled.append(True)
            raise

    async with engine, engine.worker():
        handles = await post.enqueue_many([(1,), (2,)])
        await gate.until_reached()
        for handle in handles:
            await handle.cancel()
        assert await states(handles) == [State.CANCELLED] * 2
    assert was_cancelled == [True]


async def test_a_batch_is_handed_back_when_its_worker_stops(engine: Engine) -> None:
    gate = Gate()

    @engine.task(batch=Batch(size=3))
    async def post(numbers: list[int]) -> list[int]:
        await gate.hold()
        return numbers

    async with engine:
        handles = await post.enqueue_many([(1,), (2,), (3,)])
        async with engine.worker(grace=0):
            await gate.until_reached()
        assert [record.attempts for record in await all_tasks(engine)] == [0, 0, 0]
        gate.open()
        async with engine.worker():
            assert await results(handles) == [1, 2, 3]


async def test_writes_of_the_function_are_committed_with_all_items(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task(batch=Batch(size=3), retry=Retry(attempts=2, first=3600, cap=3600))
    def post(numbers: list[int], ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS note (number INTEGER)")
            connection.executemany("INSERT INTO note VALUES (?)", [(number,) for number in numbers])
        if 3 in numbers:
            raise BatchErrors({2: ValueError()})
        raise ValueError

    async with engine, engine.worker():
        handles = await post.enqueue_many([(1,), (2,), (3,)])
        await until_state(handles[2], State.SCHEDULED)
        assert await states(handles[:2]) == [State.SUCCEEDED] * 2
        for handle in await post.enqueue_many([(4,), (5,), (6,)]):
            await until_state(handle, State.SCHEDULED)
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        assert connection.execute("SELECT number FROM note").fetchall() == [(1,), (2,), (3,)]


# ---------------------------------------------------------------- child processes


async def test_a_batch_runs_in_a_child_process(engine: Engine) -> None:
    square = on(engine, process_bodies.square_all, batch=Batch(size=3))
    async with engine, engine.worker():
        assert await results(await square.enqueue_many([(1,), (2,), (3,)])) == [1, 4, 9]
        handles = await square.enqueue_many([(4,), (-5,), (6,)])
        assert await states(handles) == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED]
        assert (await handles[1].status()).errors[0].message == "-5 is negative"


async def test_after_a_crash_the_items_run_alone(engine: Engine) -> None:
    square = on(engine, process_bodies.square_all, batch=Batch(size=4, wait="1h"))
    async with engine, engine.worker():
        handles = await square.enqueue_many([(1,), (13,), (3,), (4,)])
        assert await states(handles) == [State.SUCCEEDED, State.FAILED, State.SUCCEEDED, State.SUCCEEDED]
        records = [await handle.status() for handle in handles]
    assert [record.crashes for record in records] == [0, 3, 0, 0]
    assert records[1].reason is Reason.CRASHED
    assert [record.result for record in records] == [1, None, 9, 16]


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (lambda: Batch(size=0), "Batch size must be a whole number from 1"),
        (lambda: Batch(size=True), "Batch size"),
        (lambda: Batch(size=100_000), "Batch size"),
        (lambda: Batch(size=2, wait=-1), "Batch wait must be not negative"),
        (lambda: Batch(size=2, wait="soon"), "Batch wait"),
        (
            lambda: Batch(size=2, by=3),  # type: ignore[arg-type]
            "Batch by must be a function or a template",
        ),
    ],
)
def test_a_wrong_batch_is_rejected(batch: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        batch()


@pytest.mark.parametrize("errors", [{}, {"0": ValueError()}, {-1: ValueError()}, {0: "bad"}, [ValueError()], None])
def test_wrong_batch_errors_are_rejected(errors: Any) -> None:
    with pytest.raises(OptionError, match="BatchErrors takes"):
        BatchErrors(errors)


def test_a_function_that_takes_no_list_is_rejected(memory_url: str) -> None:
    engine = Engine(memory_url)

    def nothing() -> None: ...
    def number(number: int) -> None: ...
    def untyped(items) -> None: ...  # type: ignore[no-untyped-def]
    def two(items: list[int], more: int) -> None: ...
    def one_result(items: list[int]) -> int: ...  # type: ignore[empty-body]

    for function, said in (
        (nothing, "takes a list of items; add that parameter"),
        (number, "'number' has the annotation int"),
        (untyped, "'items' has no annotation"),
        (two, "takes 'more' too"),
        (one_result, "returns None or a list"),
    ):
        with pytest.raises(OptionError, match=said):
            engine.task(batch=Batch(size=2))(function)  # type: ignore[arg-type]
    assert not engine.kinds


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit_by": "{customer}", "limit": 1}, "batch and limit_by cannot be given together"),
        ({"fair_by": "{customer}"}, "batch and fair_by cannot be given together"),
        ({"rate": Rate(1)}, "batch and rate cannot be given together"),
        ({"batch": 100}, "batch must be a Batch"),
        ({"batch": Batch(size=2, by="{custmer}")}, "asks for 'custmer'"),
        ({"batch": Batch(size=2, by="all")}, "names no argument"),
        ({"title": "{nobody}"}, "asks for 'nobody'"),
        ({"key": "{nobody}"}, "asks for 'nobody'"),
    ],
)
def test_options_that_do_not_go_together_are_rejected(memory_url: str, options: dict[str, Any], said: str) -> None:
    engine = Engine(memory_url)
    with pytest.raises(OptionError, match=said):

        @engine.task(**{"batch": Batch(size=2), **options})  # type: ignore[untyped-decorator]  # its options are a dict
        def post(hooks: list[Hook]) -> None: ...


async def test_options_of_one_item(engine: Engine) -> None:
    engine.limit("api", rate=Rate(10))

    @engine.task(batch=Batch(size=2), limits=["api"], units=5)
    def post(hooks: list[int]) -> None: ...

    for options in ({"queue": "mail"}, {"timeout": 3}, {"units": 3}, {"runs_in": "process"}, {"needs": ["gpu"]}):
        with pytest.raises(OptionError, match="items of a batch run together"):
            post.with_options(**options)
    with pytest.raises(OptionError, match="can_accept"):
        post.can_accept(lambda candidates: candidates)
    with pytest.raises(OptionError, match="on_final_failure"):
        post.on_final_failure(lambda *_: None)
    async with engine:
        with pytest.raises(PayloadError, match="does not fit its signature"):
            await post.enqueue("one")  # type: ignore[arg-type]
        with pytest.raises(OptionError, match="there is no limit 'key:post'"):
            await engine.set_limit("key:post", 3)
        with pytest.raises(OptionError, match=r"there is no limit 'key:post'; declared are: api$"):
            await engine.set_limit("key:post", rate=Rate(3))
        assert await all_tasks(engine) == []
        once = post.with_options(key="a", priority=5, delay=3600, tags=["x"], retry=3)
        first, second = await once.enqueue(1), await once.enqueue(2)
        assert (first.id, second.created) == (second.id, False)


def test_the_function_remains_callable(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task(batch=Batch(size=2))
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    assert double([1, 2]) == [2, 4]
