"""The options `fair_by` and `weight`: tenants take turns on a node, and mistakes are told where they are made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.every_store import every_url  # noqa: F401
from tests.support import Gate, until_state

from synergon import Context, Engine, OptionError, PayloadError, Rate, State, testing
from synergon.options.tenants import STEP


async def test_a_worker_lets_tenants_take_turns(engine: Engine) -> None:
    started: list[str] = []

    @engine.task(fair_by="{customer}")
    async def render(customer: str) -> None:
        started.append(customer)

    async with engine:
        await render.enqueue_many([("a",)] * 200)
        await render.enqueue_many([("b",)] * 10)
        async with engine.worker(concurrency=1, drain=True):
            pass
    assert "".join(started) == "ab" * 10 + "a" * 190


async def test_a_worker_with_other_kinds_lets_tenants_take_turns(engine: Engine) -> None:
    started: list[str] = []

    @engine.task(fair_by="{customer}")
    async def render(customer: str) -> None:
        started.append(customer)

    @engine.task
    async def other() -> None:
        started.append("-")

    async with engine:
        await render.enqueue_many([("a",)] * 5)
        await other.enqueue_many([()] * 5)
        await render.enqueue_many([("b",)] * 5)
        async with engine.worker(concurrency=1, drain=True):
            pass
    assert "".join(started) == "ababababa" + "-" * 5 + "b"


@pytest.mark.parametrize(
    "weight",
    [{"a": 3}, lambda customer: 3 if customer == "a" else 1],
    ids=["by tenant", "function"],
)
async def test_weights_give_a_tenant_more_turns(engine: Engine, weight: Any) -> None:
    started: list[str] = []

    @engine.task(fair_by="{customer}", weight=weight)
    async def render(customer: str) -> None:
        started.append(customer)

    async with engine:
        await render.enqueue_many([("b",)] * 40)
        await render.enqueue_many([("a",)] * 40)
        async with engine.worker(concurrency=1, drain=True):
            pass
    assert Counter(started[:40]) == {"a": 30, "b": 10}


async def test_a_call_may_have_a_weight_of_its_own(engine: Engine) -> None:
    @engine.task(fair_by=lambda customer: customer.upper(), weight=2)
    async def render(customer: str) -> None: ...

    async with engine:
        handles = [
            await render.enqueue("a"),
            await render.with_options(weight=4).enqueue("a"),
            *await engine.enqueue(
                [render.call("a").with_options(weight=0.5), render.call("a").with_options(priority=1)]
            ),
        ]
        found = [await handle.status() for handle in handles]
    assert [record.fair_key for record in found] == ["A"] * 4
    assert [record.fair_tag for record in found] == [1, 1 + STEP // 4, 1 + STEP // 4 + 2 * STEP, 1]


async def test_explain_tells_the_position_by_turns(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url)
    gate = Gate()

    @engine.task(fair_by="{customer}")
    async def render(customer: str) -> None:
        await gate.hold()

    async with engine, engine.worker(concurrency=1):
        first = await render.enqueue("a")
        await until_state(first, State.RUNNING)
        mine = await render.enqueue_many([("a",)] * 3)
        others = [await render.enqueue(customer) for customer in "bcc"]
        found = await mine[-1].explain()
        assert found.tenants_ahead == {"a": 2, "b": 1, "c": 2}
        assert found.position == 6
        assert found.sentence.endswith(
            ", position 6 by turns: 2 tasks of its tenant 'a' and 3 tasks of 2 other tenants go first"
        )
        second = await others[0].explain()
        assert second.sentence.endswith(", position 2 by turns: 1 task of tenant 'a' goes first")
        gate.open()


async def test_schedules_and_children_have_tenants(engine: Engine) -> None:
    @engine.task(fair_by="{customer}")
    async def render(customer: str) -> None: ...

    @engine.task
    async def parent(ctx: Context) -> None:
        await ctx.enqueue(render.call("child"))

    async with engine:
        await engine.schedules.create("nightly", render.call("scheduled"), cron="0 3 * * *")
        run = await engine.schedules.run_now("nightly")
        await parent.enqueue()
        async with engine.worker(drain=True):
            pass
        tenants = {record.fair_key for record in await engine.tasks(kind="render")}
    assert run is not None
    assert tenants == {"scheduled", "child"}


async def test_a_test_follows_turns() -> None:
    engine = Engine("memory://")
    started: list[str] = []

    @engine.task(fair_by="{customer}")
    async def render(customer: str) -> None:
        started.append(customer)

    async with testing.memory(engine) as tester:
        await render.enqueue_many([("a",)] * 4)
        await render.enqueue_many([("b",)] * 2)
        await tester.drain()
    assert sorted(started[:4]) == ["a", "a", "b", "b"]


# ---------------------------------------------------------------- mistakes


def option(**options: Any) -> Callable[[Engine], object]:
    """Registers a task with these options."""

    def register(engine: Engine) -> object:
        @engine.task(**options)  # type: ignore[untyped-decorator]  # its options are a dict
        async def render(customer: str) -> None: ...

        return render

    return register


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (option(weight=2), "give fair_by too"),
        (option(fair_by="{customer}", weight=0), "weight must be a number from 0.001 to 1000, got 0"),
        (option(fair_by="{customer}", weight=-1), "got -1"),
        (option(fair_by="{customer}", weight=float("nan")), "got nan"),
        (option(fair_by="{customer}", weight=True), "got True"),
        (option(fair_by="{customer}", weight="3"), "got '3'"),
        (option(fair_by="{customer}", weight={"a": 0}), "weight of 'a' must be a number from 0.001 to 1000, got 0"),
        (option(fair_by="{customer}", weight={1: 1}), "names of tenants as keys, as text, got 1"),
        (option(fair_by="{order}"), "asks for 'order', which is no argument"),
        (option(fair_by="all"), "names no argument"),
        (option(fair_by=5), "must be a function or a template"),
        (option(fair_by="{customer}", limit_by="{customer}", limit=1), "fair_by and limit_by cannot be combined"),
        (option(fair_by="{customer}", rate=Rate(1, per=1)), "fair_by and rate cannot be combined"),
    ],
)
def test_a_mistake_is_told_where_the_task_is_declared(
    memory_url: str, register: Callable[[Engine], object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        register(Engine(memory_url))


async def test_a_mistake_in_a_call_stores_nothing(engine: Engine) -> None:
    def weigh(customer: str) -> float:
        return {"zero": 0.0, "text": "3"}[customer]  # type: ignore[return-value]

    @engine.task(fair_by="{customer}", weight=weigh)
    async def render(customer: str) -> None: ...

    @engine.task
    async def plain() -> None: ...

    async with engine:
        with pytest.raises(PayloadError, match="weight of task 'render' for 'zero' must be a number"):
            await render.enqueue("zero")
        with pytest.raises(PayloadError, match="for 'text' must be a number"):
            await render.enqueue("text")
        with pytest.raises(PayloadError, match="raised KeyError for 'unknown'"):
            await render.enqueue_many([("unknown",)])
        with pytest.raises(PayloadError, match="text of 1 to 200 characters"):
            await render.enqueue("")
        with pytest.raises(OptionError, match="weight must be a number"):
            await render.with_options(weight=0).enqueue("a")
        with pytest.raises(OptionError, match="'plain' has no fair_by"):
            await plain.with_options(weight=2).enqueue()
        with pytest.raises(OptionError, match="the tenant of the task is not known here"):
            engine.call("elsewhere", a=1).with_options(weight=2)
        assert not await engine.tasks()


async def test_producers_at_once_lose_no_task(engine: Engine) -> None:
    ran: Counter[int] = Counter()

    @engine.task(fair_by="{customer}")
    async def render(customer: str, number: int) -> None:
        ran[number] += 1

    async with engine:
        await asyncio.gather(*(render.enqueue("ab"[number % 2], number) for number in range(200)))
        async with engine.worker(concurrency=20, drain=True):
            pass
    assert ran == Counter(range(200))
