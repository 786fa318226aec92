"""Kinds that share places run on different nodes: the better task goes first wherever it runs, and nobody waits for a
task that is not taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.node.every_store import every_url as every_url
from tests.support import PATIENCE_SECONDS, Gate, until, until_state

from synergon import Engine, Server, State, Why
from synergon.node.claims import courtesy

BACKLOG = 400


class Pair(NamedTuple):
    """Two engines; one has a backlog, the other one runs what is better."""

    ours: Engine
    theirs: Engine
    small: Any
    better: Any
    began: list[str]


Shape = Callable[[str, Callable[[str], Any]], tuple[Engine, Engine, Any, Any]]


def of_shape(url: str, shape: Shape) -> Pair:
    began: list[str] = []

    def body(name: str) -> Any:
        async def run() -> None:
            began.append(name)
            await asyncio.sleep(0.005)

        return run

    return Pair(*shape(url, body), began)


def engines(url: str, **more: Any) -> tuple[Engine, Engine]:
    return Engine(url, name="ours"), Engine(url, name="theirs", **more)


def by_name(url: str, body: Callable[[str], Any]) -> tuple[Engine, Engine, Any, Any]:
    ours, theirs = engines(url)
    for engine in (ours, theirs):
        engine.limit("license", 1)
    small = ours.task(name="small", limits=["license"])(body("small"))
    return ours, theirs, small, theirs.task(name="better", limits=["license"], priority=10)(body("better"))


def below_a_prefix(url: str, body: Callable[[str], Any]) -> tuple[Engine, Engine, Any, Any]:
    ours, theirs = engines(url)
    for engine in (ours, theirs):
        engine.limit("http://host", 1)
    small = ours.provider("one", servers={"http://host/a": 1}).task(name="small")(body("small"))
    other = theirs.provider("two", servers={"http://host/b": 1})
    return ours, theirs, small, other.task(name="better", priority=10)(body("better"))


def with_a_label(url: str, body: Callable[[str], Any]) -> tuple[Engine, Engine, Any, Any]:
    ours, theirs = engines(url, labels={"gpu"})
    made = []
    for engine in (ours, theirs):
        engine.limit("license", 1)
        small = engine.task(name="small", limits=["license"])(body("small"))
        made.append((small, engine.task(name="better", limits=["license"], priority=10, needs={"gpu"})(body("better"))))
    return ours, theirs, *made[0]


def in_a_queue(url: str, body: Callable[[str], Any]) -> tuple[Engine, Engine, Any, Any]:
    ours, theirs = Engine(url, name="ours", queues=["day"]), Engine(url, name="theirs", queues=["night"])
    for engine in (ours, theirs):
        engine.limit("license", 1)
        small = engine.task(name="small", queue="day", limits=["license"])(body("small"))
        better = engine.task(name="better", queue="night", limits=["license"], priority=10)(body("better"))
    return ours, theirs, small, better


async def check_that_the_better_goes_first(pair: Pair) -> None:
    async with pair.ours, pair.theirs, pair.theirs.worker(), pair.ours.worker() as node:
        await until(lambda: bool(node._courtesy._looks))
        await pair.small.enqueue_many(() for _ in range(BACKLOG))
        await until(lambda: len(pair.began) > 5)
        before = len(pair.began)
        handles = await pair.better.enqueue_many(() for _ in range(3))
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
        after = pair.began[before:]
        assert after.index("better") < BACKLOG / 4, "it waited for a part of the backlog that is not worth naming"


async def test_a_better_task_of_another_node_is_not_kept_waiting_by_a_backlog(url: str) -> None:
    await check_that_the_better_goes_first(of_shape(url, by_name))


async def test_a_command_that_only_another_node_knows_is_not_kept_waiting_by_a_backlog(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new release is rolled out: the old one has a backlog, and only the new one has the command."""
    monkeypatch.setattr(courtesy, "MOMENT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(courtesy, "SWEEP_SECONDS", PATIENCE_SECONDS)
    old, new = Engine(url, name="old"), Engine(url, name="new")
    began: list[str] = []
    pools = [engine.provider("pool", servers={"http://host": 1}) for engine in (old, new)]

    @pools[0].task
    async def small() -> None:
        began.append("small")
        await asyncio.sleep(0.005)

    @pools[1].command
    async def reload(server: Server) -> str:
        began.append("reload")
        return server.address

    async with old, new, new.worker(), old.worker() as node:
        await until(lambda: bool(node._courtesy._looks))
        await small.enqueue_many(() for _ in range(BACKLOG))
        await until(lambda: len(began) > 5)
        before = len(began)
        assert await asyncio.wait_for(reload.send(), PATIENCE_SECONDS) == "http://host"
        assert began[before:].index("reload") < BACKLOG / 4, "it waited for a part that is not worth naming"


@pytest.mark.parametrize("shape", [below_a_prefix, with_a_label, in_a_queue])
async def test_whatever_they_share_and_whyever_only_the_other_runs_it(sqlite_url: str, shape: Shape) -> None:
    await check_that_the_better_goes_first(of_shape(sqlite_url, shape))


async def test_a_kind_of_which_no_more_may_run_here_goes_on_elsewhere(postgres_url: str) -> None:
    """Both nodes run all kinds; one has its share of the better kind, and passes no place on."""
    began, gate = [], Gate()

    def make(name: str) -> tuple[Engine, Any, Any]:
        engine = Engine(postgres_url, name=name)
        engine.limit("license", 2)

        @engine.task(limits=["license"])
        async def small() -> None:
            began.append("small")
            await asyncio.sleep(0.005)

        @engine.task(limits=["license"], max_running=1, priority=10)
        async def few(is_held: bool) -> None:
            began.append("few")
            if is_held:
                await gate.hold()

        return engine, small, few

    (ours, small, few), (theirs, _, _) = make("ours"), make("theirs")
    async with ours, theirs, ours.worker() as node:
        await few.enqueue(True)
        await gate.reached.wait()
        await small.enqueue_many(() for _ in range(BACKLOG))
        async with theirs.worker():
            await until(lambda: bool(node._courtesy._looks))
            before = len(began)
            handle = await few.enqueue(False)
            await handle.result(timeout=PATIENCE_SECONDS)
            assert began[before:].index("few") < BACKLOG / 4
            gate.open()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_place_does_not_stay_empty_because_of_a_task_that_nobody_takes(
    store: str, request: pytest.FixtureRequest
) -> None:
    """The other node says that it could take it, and all of its slots are in use; when it has one, it does."""
    url: str = request.getfixturevalue(f"{store}_url")
    ours, theirs = Engine(url, name="ours"), Engine(url, name="theirs", concurrency=1)
    began, gate = [], Gate()
    for engine in (ours, theirs):
        engine.limit("license", 1)

    @ours.task(limits=["license"])
    async def small() -> None:
        began.append("small")

    @theirs.task(limits=["license"], priority=10)
    async def better() -> None:
        began.append("better")

    @theirs.task
    async def hold() -> None:
        await gate.hold()

    async with ours, theirs, theirs.worker(), ours.worker() as node:
        await until(lambda: bool(node._courtesy._looks))
        await hold.enqueue()
        await gate.reached.wait()
        waiting = await better.enqueue()
        for handle in await small.enqueue_many(() for _ in range(50)):
            await handle.result(timeout=PATIENCE_SECONDS)
        assert began == ["small"] * 50
        gate.open()
        await waiting.result(timeout=PATIENCE_SECONDS)


async def test_it_is_said_to_whom_a_place_is_left(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy, "MOMENT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(courtesy, "SWEEP_SECONDS", PATIENCE_SECONDS)
    ours, theirs = Engine(sqlite_url, name="ours"), Engine(sqlite_url, name="theirs", concurrency=1)
    gate = Gate()
    for engine in (ours, theirs):
        engine.limit("license", 1)

    @ours.task(limits=["license"])
    async def small() -> None: ...

    @theirs.task(limits=["license"], priority=10)
    async def better() -> None: ...

    @theirs.task
    async def hold() -> None:
        await gate.hold()

    async with ours, theirs, theirs.worker(), ours.worker() as node:
        await until(lambda: bool(node._courtesy._looks))
        await hold.enqueue()
        await gate.reached.wait()
        waiting = await better.enqueue()
        held_back = await small.enqueue()
        explanation = await held_back.explain()
        assert explanation.sentence.endswith(
            f"1 node runs `small`: ours leaves the place to task {waiting.id}, which only another node could take"
        )
        assert [(cause.why, cause.tasks) for cause in explanation.nodes[0].causes] == [(Why.LEFT, (waiting.id,))]
        gate.open()
        await until_state(held_back, State.SUCCEEDED)
        assert (await waiting.status()).state is State.SUCCEEDED
