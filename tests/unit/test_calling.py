"""Registering functions, and the ways to enqueue them."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime, timedelta

import pytest
from tests.conftest import NewEngine
from tests.support import PATIENCE_SECONDS, all_tasks

from synergon import Call, Context, Engine, NotConnected, OptionError, PayloadError, State, TaskType, injected

# ---------------------------------------------------------------- the decorator


def test_a_function_is_registered_with_and_without_options(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task
    async def plain() -> None: ...

    @engine.task()
    async def with_parentheses() -> None: ...

    @engine.task(name="mail.send:v2", queue="mail", priority=3, timeout=5, retry=2, max_running=1)
    def with_options() -> None: ...

    assert list(engine.kinds) == ["plain", "with_parentheses", "mail.send:v2"]
    assert isinstance(plain, TaskType)
    assert (plain.policy.queue, plain.policy.priority, plain.policy.runs_in) == ("default", 0, "loop")
    policy = with_options.policy
    assert (policy.queue, policy.priority, policy.timeout, policy.retry.attempts) == ("mail", 3, 5.0, 2)
    assert (policy.max_running, policy.runs_in) == (1, "thread")


async def test_it_stays_a_plain_callable(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task
    async def greet(name: str, *, loud: bool = False) -> str:
        """Say hello."""
        return f"hello {name}" + "!" * loud

    @engine.task
    def add(first: int, second: int = 1) -> int:
        return first + second

    assert await greet("Ada", loud=True) == "hello Ada!"
    assert add(1) == 2
    assert add(first=1, second=5) == 6
    assert (greet.__name__, greet.__doc__) == ("greet", "Say hello.")
    assert list(inspect.signature(greet).parameters) == ["name", "loud"]
    assert greet.__module__ == __name__
    assert repr(greet) == "<TaskType greet>"


def test_a_body_that_wants_its_context_can_be_called_with_any(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task
    def send(to: str, ctx: Context = injected) -> str:
        return f"{to} {ctx}"

    assert send("Ada") == "Ada None"


# ---------------------------------------------------------------- enqueue


async def test_every_way_to_enqueue_stores_the_same_task(engine: Engine) -> None:
    @engine.task(queue="mail", priority=2, retry=3)
    async def greet(name: str, greeting: str = "hello") -> None: ...

    async with engine:
        handles = [
            await greet.enqueue("Ada"),
            await greet.enqueue(name="Ada"),
            await greet.delay("Ada"),
            await greet.with_options().enqueue("Ada"),
            (await greet.enqueue_many([("Ada",)]))[0],
            (await greet.enqueue_many([{"name": "Ada"}]))[0],
            (await engine.enqueue([greet.call("Ada")]))[0],
            (await engine.enqueue([engine.call("greet", "Ada")]))[0],
            (await engine.enqueue([engine.call("greet", name="Ada")]))[0],
        ]
        assert [handle.id for handle in handles] == sorted(handle.id for handle in handles)
        for handle in handles:
            record = await handle.status()
            assert handle.created
            assert (record.kind, record.queue, record.priority, record.max_attempts) == ("greet", "mail", 2, 3)
            assert (record.arguments, record.state) == ({"name": "Ada"}, State.READY)


async def test_the_options_of_a_call_go_before_those_of_the_kind(engine: Engine) -> None:
    @engine.task(queue="mail", priority=2, retry=3)
    async def greet(name: str) -> None: ...

    moment = datetime(2101, 1, 1, tzinfo=UTC)
    async with engine:
        options = greet.with_options(
            queue="urgent", priority=0, retry=1, run_at=moment, key="a", tags=("x", "y"), meta={"b": 1}, expires_in="1h"
        )
        record = await (await options.enqueue("Ada")).status()
        assert (record.queue, record.priority, record.max_attempts) == ("urgent", 0, 1)
        assert (record.run_at, record.key, record.tags, record.meta) == (moment, "a", ("x", "y"), {"b": 1})
        assert record.expires_at == record.enqueued_at + timedelta(hours=1)
        plain = await (await greet.enqueue("Ada")).status()
        assert (plain.queue, plain.key, plain.tags, plain.meta) == ("mail", None, (), {})


async def test_options_of_a_call_replace_the_ones_it_had(engine: Engine) -> None:
    @engine.task
    async def greet(name: str) -> None: ...

    call = greet.with_options(key="a", priority=5).call("Ada").with_options(queue="other")
    async with engine:
        (handle,) = await engine.enqueue([call])
        record = await handle.status()
    assert (record.queue, record.key, record.priority) == ("other", None, 0)


async def test_a_call_by_name_has_options_too(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    async with engine:
        call = engine.call("elsewhere", name="Ada").with_options(queue="mail", priority=4, delay=60)
        (handle,) = await engine.enqueue([call])
        record = await handle.status()
    assert (record.kind, record.queue, record.priority, record.state) == ("elsewhere", "mail", 4, State.SCHEDULED)
    assert record.max_attempts is None, "the node that runs it knows"
    assert record.arguments == {"name": "Ada"}


async def test_a_call_by_name_is_checked_where_it_runs_if_nobody_else_can(new_engine: NewEngine, url: str) -> None:
    producer, worker = new_engine(url), new_engine(url, sweep=0.02)

    @worker.task(retry=5)
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with producer:
        good, bad = await producer.enqueue([producer.call("greet", name="Ada"), producer.call("greet", nmae="Ada")])
        async with worker.worker(drain=True):
            pass
        assert (await good.status()).result == "hello Ada"
        assert (await bad.status()).max_attempts is None
        failed = await bad.status()
    assert failed.error is not None
    assert "does not fit its signature: Object contains unknown field `nmae`" in failed.error.message


async def test_many_are_stored_all_or_none(engine: Engine) -> None:
    @engine.task
    async def greet(name: str) -> None: ...

    async with engine:
        with pytest.raises(PayloadError):
            await greet.enqueue_many([("Ada",), ("Bob",), (3,)])
        with pytest.raises(PayloadError, match=r"takes tuples or dicts of arguments, got 'Bob'; .*\(value,\)"):
            await greet.enqueue_many([("Ada",), "Bob"])  # type: ignore[list-item]  # wrong on purpose
        assert await all_tasks(engine) == []
        assert await greet.enqueue_many([]) == []
        assert await engine.enqueue([]) == []


async def test_one_call_is_no_list_and_a_task_is_no_call(engine: Engine) -> None:
    @engine.task
    async def greet(name: str) -> None: ...

    async with engine:
        with pytest.raises(OptionError, match=r"takes a list of calls, got one; write engine.enqueue\(\[greet.call"):
            await engine.enqueue(greet.call("Ada"))  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(OptionError, match=r"takes calls, like greet.call\('Ada'\), got <TaskType greet>"):
            await engine.enqueue([greet])  # type: ignore[arg-type]  # wrong on purpose


async def test_a_generator_of_calls_is_as_good_as_a_list(engine: Engine) -> None:
    @engine.task
    async def greet(number: int) -> None: ...

    async with engine:
        assert len(await engine.enqueue(greet.call(number) for number in range(3))) == 3


def test_a_call_shows_what_it_is(memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task
    async def greet(name: str) -> None: ...

    call = greet.call("Ada")
    assert isinstance(call, Call)
    assert repr(call) == '<Call of greet {"name":"Ada"}>'
    assert repr(engine).startswith("<Engine memory://")


async def test_an_engine_that_is_not_connected_says_so(engine: Engine) -> None:
    @engine.task
    async def greet() -> None: ...

    with pytest.raises(NotConnected, match="use `async with engine:` around this"):
        await greet.enqueue()
    with pytest.raises(NotConnected, match="use `async with engine:` around this"):
        await engine.wait(1)
    with pytest.raises(NotConnected):
        await engine.counts()


async def test_an_engine_may_be_entered_often_and_is_closed_by_the_last(engine: Engine) -> None:
    @engine.task
    async def greet() -> None: ...

    async with engine:
        async with engine:
            await greet.enqueue()
        await greet.enqueue()
        assert len(await all_tasks(engine)) == 2
    with pytest.raises(NotConnected):
        await greet.enqueue()


async def test_engines_that_name_the_same_store_see_the_same_tasks(new_engine: NewEngine, url: str) -> None:
    first, second = new_engine(url), new_engine(url)

    @first.task
    async def greet() -> None: ...

    async with first, second:
        handle = await greet.enqueue()
        assert (await second.get(handle.id)).kind == "greet"


async def test_plain_memory_is_nobody_elses(new_engine: NewEngine) -> None:
    first, second = new_engine("memory://"), new_engine("memory://")

    @first.task
    async def greet() -> None: ...

    async with first, second:
        await greet.enqueue()
        assert await all_tasks(second) == []


async def test_producers_at_once_are_all_served(engine: Engine) -> None:
    @engine.task
    async def double(number: int) -> int:
        return 2 * number

    async with engine.worker():
        handles = await asyncio.gather(*(double.enqueue(number) for number in range(200)))
        results = await asyncio.gather(*(handle.result(PATIENCE_SECONDS) for handle in handles))
    assert results == [2 * number for number in range(200)]
    assert len({handle.id for handle in handles}) == 200
