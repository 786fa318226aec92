"""What ends a task lets the next one start in the same step: on SQLite and PostgreSQL, both in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.support import PATIENCE_SECONDS, TroubledStore, make_troubled, until

from synergon import Engine
from synergon.errors import StoreUnavailable
from synergon.model.claims import Claim
from synergon.node.claims import courtesy
from synergon.node.node import Node

TASKS = 20
Body = Callable[[int], Coroutine[Any, Any, int]]


async def test_the_next_claim_does_not_wait_for_the_outcome_that_makes_room_for_it(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)
    engine.limit("license", 1)

    @engine.task(limits=["license"])
    async def licensed(number: int) -> int:
        return number

    async with engine:
        handles = await licensed.enqueue_many((number,) for number in range(TASKS))
        calls = Calls(engine.store)
        async with engine.worker():
            assert [await handle.result() for handle in handles] == list(range(TASKS))

    assert calls.outcomes == TASKS, "one at a time"
    assert calls.claims_meanwhile >= TASKS / 2, "the claims came while the outcomes were being written"
    assert calls.empty_claims <= TASKS, "nobody asks twice for the same reason"


class Calls:
    """Counts the claims that were asked for while outcomes were under way."""

    def __init__(self, store: Any) -> None:
        self._claim, self._finish = store.claim, store.finish
        store.claim, store.finish = self.claim, self.finish
        self._under_way = 0
        self.outcomes = self.claims_meanwhile = self.empty_claims = 0

    async def claim(self, request: Any) -> Any:
        self.claims_meanwhile += self._under_way > 0
        claims = await self._claim(request)
        self.empty_claims += not claims
        return claims

    async def finish(self, settlements: Any) -> Any:
        self._under_way += 1
        try:
            verdicts = await self._finish(settlements)
        finally:
            self._under_way -= 1
        self.outcomes += len(verdicts)
        return verdicts


# ---------------------------------------------------------------- on PostgreSQL


Register = Callable[[Engine, Body], Any]


def by_name(engine: Engine, body: Body) -> Any:
    engine.limit("license", 1)
    return engine.task(name="shared", limits=["license"])(body)


def in_line(engine: Engine, body: Body) -> Any:
    return engine.task(name="shared", limit_by=lambda number: "one", limit=1)(body)


def on_server(engine: Engine, body: Body) -> Any:
    return engine.provider("pool", servers=["https://one.example.com"], capacity=1).task(name="shared")(body)


def beside_another_kind(engine: Engine, body: Body) -> Any:
    shared = by_name(engine, body)
    engine.task(name="another", limits=["license"])(body)
    return shared


def below_a_prefix(engine: Engine, body: Body) -> Any:
    engine.limit("https://example.com", 1)
    servers = {"https://example.com/v1": 5, "https://example.com/v2": 5}
    return engine.provider("pool", servers=servers).task(name="shared")(body)


def beside_another_provider(engine: Engine, body: Body) -> Any:
    shared = below_a_prefix(engine, body)
    engine.provider("other", servers={"https://example.com/other": 5}).task(name="another")(body)
    return shared


def in_line_on_server(engine: Engine, body: Body) -> Any:
    pool = engine.provider("pool", servers=["https://one.example.com"], capacity=1)
    return pool.task(name="shared", limit_by=lambda number: "one", limit=1)(body)


WAYS = pytest.mark.parametrize(
    "register",
    [by_name, in_line, on_server, beside_another_kind, below_a_prefix, beside_another_provider, in_line_on_server],
)


def watch(store: TroubledStore) -> list[Claim]:
    """Who is given a place by the task before."""
    passed: list[Claim] = []

    async def note(call: Callable[[], Awaitable[Any]]) -> Any:
        verdict, claims = await call()
        passed.extend(claims or ())
        return verdict, claims

    store.cause("pass_on", note)
    return passed


@WAYS
async def test_a_place_is_passed_on_from_task_to_task(postgres_url: str, register: Register) -> None:
    engine, turns = Engine(postgres_url), Turns()
    made = make_troubled(engine)
    task = register(engine, turns.body)
    async with engine:
        passed = watch(made[-1])
        handles = await task.enqueue_many((number,) for number in range(TASKS))
        turns.gate.clear()
        async with engine.worker() as node:
            await turns.let_go(node)
            assert [await handle.result() for handle in handles] == list(range(TASKS))
    assert turns.began == list(range(TASKS))
    assert turns.most == 1
    assert len(passed) >= TASKS / 4, "nearly all of them; but claims may come between"


async def test_a_place_is_passed_on_in_the_order_of_all_kinds_that_share_it(postgres_url: str) -> None:
    engine, turns = Engine(postgres_url), Turns()
    made = make_troubled(engine)
    engine.limit("license", 1)
    kinds = [engine.task(name=name, limits=["license"])(turns.body) for name in ("one", "two")]
    async with engine:
        passed = watch(made[-1])
        handles = [await kinds[number % 3 % 2].enqueue(number) for number in range(TASKS)]
        handles += [await kinds[1].with_options(priority=1).enqueue(TASKS)]
        turns.gate.clear()
        async with engine.worker() as node:
            await turns.let_go(node)
            for handle in handles:
                await handle.result(timeout=PATIENCE_SECONDS)
    assert turns.began == [TASKS, *range(TASKS)]
    assert turns.most == 1
    assert len(passed) >= TASKS / 4


@WAYS
async def test_whoever_took_the_place_unheard_runs_all_the_same(postgres_url: str, register: Register) -> None:
    """The store has passed the place on, and its answer is lost: nobody here knows of the task that runs now."""
    engine, turns = Engine(postgres_url), Turns()
    made = make_troubled(engine)
    task = register(engine, turns.body)
    lost: list[Any] = []

    async def lose_the_answer(call: Callable[[], Awaitable[Any]]) -> Any:
        verdict, claims = await call()
        if claims is None or lost:
            return verdict, claims
        lost.extend(claims)
        raise StoreUnavailable("the answer is lost")

    async with engine:
        made[-1].cause("pass_on", lose_the_answer)
        handles = await task.enqueue_many((number,) for number in range(6))
        turns.gate.clear()
        async with engine.worker() as node:
            await turns.let_go(node)
            assert [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles] == list(range(6))
        record = await engine.get(lost[0].id)
    assert (turns.began, turns.most) == (list(range(6)), 1)
    assert record is not None
    assert (record.attempts, record.claim_no) == (1, 2), "it was given back at no cost, and claimed again"


async def test_a_node_with_something_better_to_do_passes_nothing_on(postgres_url: str) -> None:
    """The one slot is for whoever is first, of any kind."""
    engine, turns = Engine(postgres_url, concurrency=1), Turns()
    shared = by_name(engine, turns.body)

    @engine.task(priority=1)
    async def better(number: int) -> int:
        return await turns.body(number)

    async with engine:
        handles = await shared.enqueue_many((number,) for number in range(3))
        turns.gate.clear()
        async with engine.worker():
            await turns.entered.wait()
            handles += await better.enqueue_many((number,) for number in range(10, 13))
            turns.gate.set()
            for handle in handles:
                await handle.result(timeout=PATIENCE_SECONDS)
    assert turns.began == [0, 10, 11, 12, 1, 2]


class Turns:
    """A body that notes who is inside."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.inside = self.most = 0
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self._node: Node | None = None

    async def let_go(self, node: Node) -> None:
        """Let each one go only when no claim of the node is in flight: a node that claims passes nothing on."""
        await self.entered.wait()
        await until(lambda: node.scheduler.is_at_rest(None))
        self._node = node
        self.gate.set()

    async def body(self, number: int) -> int:
        self.began.append(number)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        await self.gate.wait()
        await asyncio.sleep(0.001)
        if (node := self._node) is not None:
            await until(lambda: node.scheduler.is_at_rest(None))
        self.inside -= 1
        return number


@pytest.fixture
def are_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes wait for each other, however long the machine stands still."""
    monkeypatch.setattr(courtesy, "MOMENT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(courtesy, "SWEEP_SECONDS", PATIENCE_SECONDS)


@pytest.mark.usefixtures("are_patient")
async def test_a_place_that_others_wait_for_is_not_kept_from_them(postgres_url: str) -> None:
    """A kind that only another node runs takes the same places: they are passed on here while it has nothing better."""
    engine, other, turns = Engine(postgres_url), Engine(postgres_url), Turns()
    made = make_troubled(engine)
    shared = by_name(engine, turns.body)
    other.limit("license", 1)
    stranger = other.task(name="stranger", limits=["license"])(turns.body)
    async with engine, other, other.worker(), engine.worker() as node:
        await until(lambda: bool(node._courtesy._looks))
        passed = watch(made[-1])
        turns.gate.clear()
        handles = await shared.enqueue_many((number,) for number in range(9))
        await turns.entered.wait()
        handles += await stranger.with_options(priority=1).enqueue_many((number,) for number in range(10, 12))
        handles += await stranger.enqueue_many((number,) for number in range(20, 23))
        await turns.let_go(node)
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
    assert turns.most == 1
    assert turns.began == [0, 10, 11, *range(1, 9), 20, 21, 22]
    assert {claim.kind for claim in passed} == {"shared"}, "without a claim of its own"


@pytest.mark.usefixtures("are_patient")
async def test_whoever_is_left_a_place_is_told_each_time(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, other, turns = Engine(postgres_url), Engine(postgres_url), Turns()
    shared = by_name(engine, turns.body)
    other.limit("license", 1)
    stranger = other.task(name="stranger", limits=["license"])(turns.body)
    told: list[list[str]] = []
    async with engine, other, other.worker(), engine.worker() as node:
        await until(lambda: bool(node._courtesy._looks))
        tell = node._freeing._tell

        def note(names: list[str]) -> None:
            told.append(names)
            tell(names)

        monkeypatch.setattr(node._freeing, "_tell", note)
        turns.gate.clear()
        handles = [await shared.enqueue(0)]
        await turns.entered.wait()
        handles += [await kind.enqueue(number) for number, kind in enumerate((stranger, shared, stranger), 1)]
        await turns.let_go(node)
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
    assert turns.began == [0, 1, 2, 3]
    assert told == [["license"], ["license"]]


@pytest.mark.usefixtures("are_patient")
@pytest.mark.parametrize("has_strangers", [True, False])
async def test_others_look_at_once_where_it_has_to_be_weighed_who_follows(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, has_strangers: bool
) -> None:
    """A task of another provider below the same prefix is better: whether its server has room is for a claim to say,
    and its node need not wait for that."""
    engine, other, turns = Engine(postgres_url), Engine(postgres_url), Turns()
    shared = below_a_prefix(engine, turns.body)
    other.limit("https://example.com", 1)
    runner = other if has_strangers else engine
    stranger = runner.provider("other", servers={"https://example.com/other": 5}).task(name="stranger")(turns.body)
    told: list[list[str]] = []
    async with engine, other, other.worker(), engine.worker() as node:
        await until(lambda: bool(node._courtesy._looks) == has_strangers)
        monkeypatch.setattr(node._freeing, "_tell", told.append)
        turns.gate.clear()
        first = await shared.enqueue(0)
        await turns.entered.wait()
        handles = [await stranger.with_options(priority=1).enqueue(1), await shared.enqueue(2)]
        await turns.let_go(node)
        await first.result(timeout=PATIENCE_SECONDS)
        assert told == ([["provider:pool", "servers"]] if has_strangers else [])
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
    assert turns.began == [0, 1, 2]
