"""`can_accept`: a node looks at candidates, takes what its function says, and leaves the rest to others."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.counted_functions import node_of
from tests.node.every_store import every_url  # noqa: F401
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, ended, make_troubled, until

from synergon import (
    Candidate,
    ConfigurationError,
    Context,
    Engine,
    Handle,
    OptionError,
    Reason,
    Resources,
    Retry,
    Snooze,
    State,
)


async def results(handles: list[Handle[Any]]) -> list[Any]:
    return [await handle.result(PATIENCE_SECONDS) for handle in handles]


async def test_a_node_takes_what_its_function_says_and_another_one_the_rest(new_engine: NewEngine, url: str) -> None:
    engines = [new_engine(url, name=name) for name in ("even", "odd")]
    for parity, engine in enumerate(engines):

        @engine.task
        async def note(number: int, parity: int = parity) -> int:
            return parity

        @note.can_accept
        async def suits(candidates: list[Candidate], parity: int = parity) -> list[Candidate]:
            return [candidate for candidate in candidates if candidate.arguments["number"] % 2 == parity]

    async with engines[0], engines[1], engines[0].worker(), engines[1].worker():
        calls = [engines[0].call("note", number=number) for number in range(10)]
        handles = await engines[0].enqueue(calls)
        assert await results(handles) == [0, 1] * 5


async def test_candidates_are_shown_in_the_order_in_which_they_would_be_taken(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url)
    shown: list[Candidate] = []
    ran: list[str] = []

    @engine.task(max_running=1)
    async def note(name: str) -> None:
        ran.append(name)

    @note.can_accept
    def all_of_them(candidates: list[Candidate]) -> Iterator[int]:
        shown.extend(candidates)
        yield from (candidate.id for candidate in candidates)

    async with engine:
        handles = [
            await note.with_options(priority=priority, tags=["t"], meta={"m": 1}).enqueue(name)
            for name, priority in (("second", 0), ("third", 0), ("first", 5))
        ]
        async with engine.worker():
            await results(handles)
        record = await handles[2].status()
    assert ran == [candidate.arguments["name"] for candidate in shown] == ["first", "second", "third"]
    first = shown[0]
    assert (first.id, first.kind, first.queue, first.priority) == (handles[2].id, "note", "default", 5)
    assert (first.attempts, first.tags, first.meta) == (0, ("t",), {"m": 1})
    assert first.enqueued_at == record.enqueued_at


async def test_a_thousand_refused_do_not_hide_the_next_one(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url)
    asked: Counter[int] = Counter()

    @engine.task
    async def note(number: int) -> int:
        return number

    @note.can_accept
    async def only_large(candidates: list[Candidate]) -> list[Candidate]:
        asked.update(candidate.arguments["number"] for candidate in candidates)
        return [candidate for candidate in candidates if candidate.arguments["number"] > 1000]

    async with engine:
        handles = await note.enqueue_many([(number,) for number in range(1, 1002)])
        async with engine.worker():
            assert await handles[-1].result(PATIENCE_SECONDS) == 1001
            for number in (2001, 2002, 2003):  # nobody is asked again about the thousand
                assert await (await note.enqueue(number)).result(PATIENCE_SECONDS) == number
            assert asked.most_common(1)[0][1] == 1
            assert (await engine.counts())[State.READY] == 1000


async def test_one_that_was_lost_to_another_node_is_not_asked_about_again(
    new_engine: NewEngine, memory_url: str
) -> None:
    chooser, taker = new_engine(memory_url, name="chooser"), new_engine(memory_url, name="taker", listen=None)
    asked: list[int] = []
    is_taken, gate = asyncio.Event(), Gate()

    @chooser.task(name="note")
    async def note_here() -> str:
        return "here"

    @note_here.can_accept
    async def when_taken(candidates: list[Candidate]) -> list[Candidate]:
        asked.extend(candidate.id for candidate in candidates)
        await is_taken.wait()
        return candidates

    @taker.task(name="note")
    async def note_there() -> str:
        is_taken.set()
        await gate.hold()
        raise Snooze(0)

    async with chooser, taker, chooser.worker(sweep=0.05):
        handle = await note_here.enqueue()
        await until(lambda: bool(asked))
        async with taker.worker(grace=PATIENCE_SECONDS):
            await gate.until_reached()
            await until(lambda: chooser._node is not None and not chooser._node.scheduler.is_claiming)
            gate.open()
            await until(lambda: taker._node is not None and taker._node.completer.finished == 1)
            node_of(taker).scheduler.close()
        assert await handle.result(PATIENCE_SECONDS) == "here"
    assert asked == [handle.id]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _: 1 / 0, "division by zero"),
        (lambda _: None, "must return a list of candidates or of their ids, got None"),
        (lambda _: True, "must return a list of candidates or of their ids, got True"),
        (lambda _: "all", "must return a list of candidates or of their ids, got 'all'"),
        (lambda _: [123456], "returned 123456, which is none of the candidates"),
        (lambda _: [True], "returned True, which is none of the candidates"),
        (lambda _: [None], "returned None, which is none of the candidates"),
        (lambda _: exit(3), "SystemExit"),
    ],
)
@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_function_that_raises_or_answers_nonsense_refuses_and_is_reported(
    new_engine: NewEngine,
    memory_url: str,
    caplog: pytest.LogCaptureFixture,
    answer: Callable[[list[Candidate]], Any],
    said: str,
    is_coroutine: bool,
) -> None:
    broken, healthy = (new_engine(memory_url, sweep=0.05) for _ in range(2))

    @broken.task(name="note")
    async def note_here() -> str:
        return "broken"

    @healthy.task(name="note")
    async def note_there() -> str:
        return "healthy"

    async def answer_later(candidates: list[Candidate]) -> Any:
        return answer(candidates)

    note_here.can_accept(answer_later if is_coroutine else answer)
    async with broken, healthy, broken.worker():
        handle = await note_here.enqueue()
        await until(lambda: "can_accept of note gave no verdict on 1 tasks" in caplog.text)
        assert (await handle.status()).state is State.READY
        async with healthy.worker():
            assert await handle.result(PATIENCE_SECONDS) == "healthy"
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert record.exc_text is not None
    assert said in record.exc_text


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_function_that_never_answers_refuses_and_holds_nothing_else_up(
    new_engine: NewEngine, memory_url: str, caplog: pytest.LogCaptureFixture, is_coroutine: bool
) -> None:
    stuck, healthy = (new_engine(memory_url, sweep=0.05) for _ in range(2))
    gate, calls = ThreadGate(), 0

    @stuck.task(name="note")
    async def note_here() -> str:
        return "stuck"

    @stuck.task
    async def other() -> str:
        return "ran"

    @healthy.task(name="note")
    async def note_there() -> str:
        return "healthy"

    async def never(candidates: list[Candidate]) -> list[Candidate]:
        nonlocal calls
        calls += 1
        while not gate._opened.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue  # deaf on purpose
        return candidates

    def hangs(candidates: list[Candidate]) -> list[Candidate]:
        nonlocal calls
        calls += 1
        gate.hold()
        return candidates

    note_here.can_accept(timeout=0.05, holds_for=0.01)(never if is_coroutine else hangs)
    async with stuck, healthy, stuck.worker():
        handle = await note_here.enqueue()
        await until(lambda: "gave no answer within 0.05 s" in caplog.text)
        assert await (await other.enqueue()).result(PATIENCE_SECONDS) == "ran"
        await asyncio.sleep(0.1)  # verdicts have expired by now, and the first call still goes on
        assert calls == 1
        async with healthy.worker():
            assert await handle.result(PATIENCE_SECONDS) == "healthy"
        gate.open()


async def test_while_it_thinks_other_kinds_start_and_it_is_asked_once_at_a_time(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine = new_engine(memory_url)
    gate = ThreadGate()
    at_once, most = 0, 0
    lock = threading.Lock()

    @engine.task
    async def slow(number: int) -> int:
        return number

    @engine.task
    async def quick(number: int) -> int:
        return number

    @slow.can_accept
    def thinks(candidates: list[Candidate]) -> list[Candidate]:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        gate.hold()
        with lock:
            at_once -= 1
        return candidates

    async with engine, engine.worker():
        slow_ones = [await slow.enqueue(0)]
        await gate.until_reached()
        for number in range(20):
            slow_ones.append(await slow.enqueue(number + 1))
            assert await (await quick.enqueue(number)).result(PATIENCE_SECONDS) == number
        gate.open()
        assert await results(slow_ones) == list(range(21))
    assert most == 1


async def test_a_refusal_expires_and_the_task_is_asked_about_again(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    is_willing = False
    answers: list[bool] = []

    @engine.task
    async def note() -> str:
        return "ran"

    @note.can_accept(holds_for=0.05)
    async def if_willing(candidates: list[Candidate]) -> list[int]:
        answers.append(is_willing)
        return [candidate.id for candidate in candidates] if is_willing else []

    async with engine, engine.worker():  # which sweeps every minute only
        handle = await note.enqueue()
        await until(lambda: len(answers) >= 3)
        is_willing = True
        assert await handle.result(PATIENCE_SECONDS) == "ran"


async def test_what_is_accepted_and_does_not_fit_does_not_hide_what_fits(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, concurrency=3, resources=Resources(cpu=1))
    gate = Gate()

    @engine.task(cost=Resources(cpu=1))
    async def holds() -> None:
        await gate.hold()

    @engine.task
    async def note(name: str) -> str:
        return name

    @note.can_accept
    async def everything(candidates: list[Candidate]) -> list[Candidate]:
        return candidates

    async with engine, engine.worker():
        holder = await holds.enqueue()
        await gate.until_reached()
        big = [await note.with_options(cost=Resources(cpu=1)).enqueue(f"big {number}") for number in range(5)]
        small = await note.enqueue("small")
        assert await small.result(PATIENCE_SECONDS) == "small"
        gate.open()
        await holder.result(PATIENCE_SECONDS)
        assert await results(big) == [f"big {number}" for number in range(5)]


async def test_a_backlog_of_accepted_tasks_is_worked_off_in_order(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url, concurrency=3)
    ran: list[int] = []
    calls = 0

    @engine.task
    async def note(number: int) -> None:
        await asyncio.sleep(0)
        ran.append(number)

    @note.can_accept
    async def everything(candidates: list[Candidate]) -> list[Candidate]:
        nonlocal calls
        calls += 1
        return candidates

    async with engine, engine.worker(drain=True):
        await note.enqueue_many([(number,) for number in range(300)])
    assert ran == list(range(300))
    assert calls <= 10, "candidates are asked about by the hundred"


async def test_a_drain_ends_when_only_refused_tasks_are_left(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def note(number: int) -> int:
        return number

    @note.can_accept
    async def odd_ones(candidates: list[Candidate]) -> list[Candidate]:
        return [candidate for candidate in candidates if candidate.arguments["number"] % 2]

    async with engine:
        await note.enqueue_many([(number,) for number in range(1100)])
        async with asyncio.timeout(PATIENCE_SECONDS), engine.worker(drain=True):
            pass
        counts = await engine.counts()
    assert (counts[State.SUCCEEDED], counts[State.READY]) == (550, 550)


@pytest.mark.parametrize("is_coroutine", [True, False])
async def test_a_drain_ends_although_a_function_never_does(
    new_engine: NewEngine,
    memory_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_coroutine: bool,
) -> None:
    """More candidates than one question holds: those that cannot be asked about are refused too, and reported once."""
    monkeypatch.setattr("synergon.node.callbacks.callbacks.STOP_SECONDS", 0.05)
    engine, gate, calls = new_engine(memory_url, concurrency=1), ThreadGate(), 0

    @engine.task
    async def note() -> None:
        """Never gets so far."""

    async def deaf(candidates: list[Candidate]) -> list[Candidate]:
        nonlocal calls
        calls += 1
        while not gate._opened.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return candidates

    def hangs(candidates: list[Candidate]) -> list[Candidate]:
        nonlocal calls
        calls += 1
        gate.hold()
        return candidates

    note.can_accept(timeout=0.05)(deaf if is_coroutine else hangs)
    async with engine:
        handles = await note.enqueue_many([()] * 250)
        async with asyncio.timeout(PATIENCE_SECONDS), engine.worker(drain=True):
            await until(lambda: node_of(engine).acceptance.is_rejected("note", handles[-1].id))
            assert "has rejected it" in (await handles[-1].explain()).sentence
        gate.open()
        assert (await engine.counts())[State.READY] == 250
    assert calls == 1
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


async def test_a_task_whose_arguments_do_not_fit_is_not_judged_but_fails(
    new_engine: NewEngine, memory_url: str
) -> None:
    engine, producer = (new_engine(memory_url, sweep=0.05) for _ in range(2))

    @engine.task
    async def note(number: int) -> int:
        return number

    @note.can_accept
    async def nothing(candidates: list[Candidate]) -> list[Candidate]:
        return []

    async with producer, engine, engine.worker():
        (handle,) = await producer.enqueue([producer.call("note", number="many")])
        record = await ended(handle)
        assert (record.state, record.reason) == (State.FAILED, Reason.ERROR)


async def test_a_store_that_is_away_is_waited_for(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    stores = make_troubled(engine)

    @engine.task
    async def note() -> str:
        return "ran"

    @note.can_accept
    async def everything(candidates: list[Candidate]) -> list[Candidate]:
        return candidates

    async with engine, engine.worker():
        with stores[-1].away("read_candidates"):
            handle = await note.enqueue()
            await until(lambda: stores[-1].calls["read_candidates"] >= 2)
        assert await handle.result(PATIENCE_SECONDS) == "ran"


async def test_a_retry_is_asked_about_like_any_other_task(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)
    seen: list[int] = []

    @engine.task(retry=Retry(attempts=2, first=0.01))
    async def note(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return ctx.attempt

    @note.can_accept(holds_for=0.001)
    async def everything(candidates: list[Candidate]) -> list[Candidate]:
        seen.extend(candidate.attempts for candidate in candidates)
        return candidates

    async with engine, engine.worker(sweep=0.05):
        assert await (await note.enqueue()).result(PATIENCE_SECONDS) == 2
    assert sorted(set(seen)) == [0, 1]


def test_what_makes_no_sense_is_refused_where_it_is_written(new_engine: NewEngine, memory_url: str) -> None:
    engine = Engine(memory_url)

    @engine.task
    async def note() -> None: ...

    with pytest.raises(ConfigurationError, match="can_accept of 'note' decorates a function, got 7"):
        note.can_accept(7)  # type: ignore[call-overload]  # wrong on purpose
    misfits: list[Any] = [lambda: 1, lambda candidates, more: candidates]
    for misfit in misfits:
        with pytest.raises(ConfigurationError, match="can_accept of 'note' takes a function of the candidates"):
            note.can_accept(misfit)
    with pytest.raises(OptionError, match="holds_for"):
        note.can_accept(holds_for=0)(lambda candidates: candidates)
    with pytest.raises(OptionError, match="timeout"):
        note.can_accept(timeout="soon")(lambda candidates: candidates)
    note.can_accept(lambda candidates: candidates)
    with pytest.raises(ConfigurationError, match="two functions for can_accept"):
        note.can_accept(lambda candidates: candidates)


async def test_it_must_be_there_before_the_worker_starts(new_engine: NewEngine, memory_url: str) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def note() -> None: ...

    async with engine, engine.worker():
        with pytest.raises(ConfigurationError, match="must be there before a worker starts"):
            note.can_accept(lambda candidates: candidates)
