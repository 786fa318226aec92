"""Which task runs next: higher priority first, and among equals in the order of submission."""

from __future__ import annotations

import random

from tests.conftest import NewEngine
from tests.support import Gate

from synergon import Engine, Retry
from synergon.policies import HIGHEST_PRIORITY, LOWEST_PRIORITY


async def drain(engine: Engine, *, concurrency: int = 1) -> None:
    """Run everything that is stored."""
    async with engine.worker(concurrency=concurrency, drain=True):
        pass


async def test_a_thousand_tasks_of_equal_priority_run_in_the_order_of_submission(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def note(number: int) -> None:
        ran.append(number)

    async with engine:
        await note.enqueue_many([(number,) for number in range(900)])
        for number in range(900, 1000):
            await note.enqueue(number)
        await drain(engine)
    assert ran == list(range(1000))


async def test_tasks_that_come_while_others_run_keep_the_order_of_submission(engine: Engine) -> None:
    ran: list[int] = []
    gate = Gate()

    @engine.task
    async def note(number: int) -> None:
        if number == 0:
            await gate.hold()
        ran.append(number)

    async with engine.worker(concurrency=1, drain=True):
        await note.enqueue(0)
        await gate.until_reached()
        for number in range(1, 101):
            await note.enqueue(number)
        gate.open()
    assert ran == list(range(101))


async def test_order_holds_across_kinds_and_queues(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task
    async def first(number: int) -> None:
        ran.append(number)

    @engine.task(queue="other")
    async def second(number: int) -> None:
        ran.append(number)

    async with engine:
        await engine.enqueue([(first if number % 3 else second).call(number) for number in range(300)])
        await drain(engine)
    assert ran == list(range(300))


async def test_any_64_bit_priority_sorts_where_it_belongs(engine: Engine) -> None:
    ran: list[int] = []
    priorities = [LOWEST_PRIORITY, LOWEST_PRIORITY + 1, -(2**53) - 1, -1, 0, 1, 2**53 + 1, HIGHEST_PRIORITY - 1]
    priorities = [*priorities, HIGHEST_PRIORITY] * 3
    random.Random(7).shuffle(priorities)

    @engine.task
    async def note(place: int) -> None:
        ran.append(place)

    async with engine:
        await engine.enqueue(
            [note.with_options(priority=priority).call(place) for place, priority in enumerate(priorities)]
        )
        await drain(engine)
    assert ran == sorted(range(len(priorities)), key=lambda place: (-priorities[place], place))


async def test_the_priority_of_the_kind_holds_unless_the_call_says_otherwise(engine: Engine) -> None:
    ran: list[str] = []

    @engine.task(priority=5)
    async def usual(name: str) -> None:
        ran.append(name)

    async with engine:
        await usual.with_options(priority=0).enqueue("last")
        await usual.enqueue("second")
        await usual.with_options(priority=6).enqueue("first")
        await drain(engine)
    assert ran == ["first", "second", "last"]


async def test_a_higher_priority_that_comes_while_all_slots_are_busy_runs_next(engine: Engine) -> None:
    ran: list[str] = []
    gate = Gate()

    @engine.task
    async def note(name: str) -> None:
        if name.startswith("busy"):
            await gate.hold()
        ran.append(name)

    async with engine.worker(concurrency=2, drain=True):
        await note.enqueue_many([("busy 1",), ("busy 2",)])
        await gate.until_reached()
        await note.enqueue_many([("plain 1",), ("plain 2",)])
        await note.with_options(priority=1).enqueue("urgent")
        gate.open()
    assert ran[:2] == ["busy 1", "busy 2"]
    assert ran[2:] == ["urgent", "plain 1", "plain 2"]


async def test_a_retry_keeps_its_place_in_the_sequence(engine: Engine) -> None:
    ran: list[int] = []

    @engine.task(retry=Retry(attempts=2, first=0))
    async def fails_at_first(number: int) -> None:
        ran.append(number)
        if number == 1 and ran.count(1) == 1:
            raise ValueError("once")

    async with engine:
        await fails_at_first.enqueue_many([(0,), (1,), (2,), (3,)])
        await drain(engine)
    # The slot is free before the failure is written, so one neighbour may slip in; not two.
    assert ran in ([0, 1, 1, 2, 3], [0, 1, 2, 1, 3])


async def test_a_node_with_several_slots_fills_all_of_them(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=7)
    gate = Gate()
    running = 0
    most = 0

    @engine.task
    async def hold() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 7:
            gate.open()
        await gate.hold()
        running -= 1

    async with engine.worker(drain=True):
        await hold.enqueue_many([()] * 30)
    assert most == 7
