"""Kinds that need the same permits run on different nodes: none of them starves, whatever backlog another node has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from tests.support import PATIENCE_SECONDS, Gate, until

from synergon import Engine, Rate, Server
from synergon.node.claims import scheduler
from synergon.node.node import Node

SOON: Final = 300
"""So many tasks of the backlog may start before another node's task does. The backlog itself has no end."""

Body = Callable[[], Any]
Shape = Callable[[Engine, Engine, Body, Body], tuple[Any, Any]]


@pytest.fixture(name="url", params=("sqlite", "postgres"))
def shared_url(request: pytest.FixtureRequest) -> str:
    """The URL of each store that nodes of several engines share."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


class Backlog:
    """A kind with endless tasks, and another that only the other node runs; what began, in order."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.inside = self.most = 0
        self.again: Callable[[], Any] = lambda: None

    async def endless(self) -> None:
        """Each brings the next one."""
        await self._enter("endless")
        await self.again()

    async def other(self) -> None:
        await self._enter("other")

    async def _enter(self, name: str) -> None:
        self.began.append(name)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.001)
        self.inside -= 1


def a_named_limit(ours: Engine, theirs: Engine, endless: Body, other: Body) -> tuple[Any, Any]:
    for engine in (ours, theirs):
        engine.limit("license", 1)
    return (
        ours.task(name="endless", limits=["license"])(endless),
        theirs.task(name="other", limits=["license"])(other),
    )


def a_server(ours: Engine, theirs: Engine, endless: Body, other: Body) -> tuple[Any, Any]:
    pools = [engine.provider("pool", servers={"http://host": 1}) for engine in (ours, theirs)]
    return pools[0].task(name="endless")(endless), pools[1].task(name="other")(other)


def a_prefix_over_two_providers(ours: Engine, theirs: Engine, endless: Body, other: Body) -> tuple[Any, Any]:
    for engine in (ours, theirs):
        engine.limit("http://host", 1)
    first = ours.provider("one", servers={"http://host/a": 1}).task(name="endless")(endless)
    return first, theirs.provider("two", servers={"http://host/b": 1}).task(name="other")(other)


def a_queue_that_only_the_other_serves(ours: Engine, theirs: Engine, endless: Body, other: Body) -> tuple[Any, Any]:
    made = []
    for engine in (ours, theirs):
        engine.limit("license", 1)
        made.append(
            (
                engine.task(name="endless", queue="day", limits=["license"])(endless),
                engine.task(name="other", queue="night", limits=["license"])(other),
            )
        )
    return made[0][0], made[1][1]


def a_label_that_only_the_other_has(ours: Engine, theirs: Engine, endless: Body, other: Body) -> tuple[Any, Any]:
    made = []
    for engine in (ours, theirs):
        engine.limit("license", 1)
        made.append(
            (
                engine.task(name="endless", limits=["license"], forbids={"gpu"})(endless),
                engine.task(name="other", limits=["license"], needs={"gpu"})(other),
            )
        )
    return made[0][0], made[1][1]


def a_rate(ours: Engine, theirs: Engine, endless: Body, other: Body) -> tuple[Any, Any]:
    for engine in (ours, theirs):
        engine.limit("license", 1, rate=Rate(200))
    return (
        ours.task(name="endless", limits=["license"])(endless),
        theirs.task(name="other", limits=["license"], units=7)(other),
    )


SHAPES: Final = [
    a_named_limit,
    a_rate,
    a_server,
    a_prefix_over_two_providers,
    a_queue_that_only_the_other_serves,
    a_label_that_only_the_other_has,
]


@asynccontextmanager
async def two_nodes(url: str, shape: Shape) -> AsyncIterator[tuple[Backlog, Any, Node]]:
    """A node with an endless backlog, which runs; a task of the other node's kind; the first node."""
    by_queue = shape is a_queue_that_only_the_other_serves
    ours = Engine(url, name="ours", concurrency=4, queues=["day"] if by_queue else None)
    labels = {"gpu"} if shape is a_label_that_only_the_other_has else None
    theirs = Engine(url, name="theirs", concurrency=4, queues=["night"] if by_queue else None, labels=labels or ())
    backlog = Backlog()
    endless, other = shape(ours, theirs, backlog.endless, backlog.other)
    async with ours, theirs, theirs.worker(), ours.worker() as node:
        await until(lambda: bool(node.permits._contested))
        backlog.again = endless.enqueue
        await endless.enqueue_many(() for _ in range(50))
        await until(lambda: len(backlog.began) > 5)
        yield backlog, other, node


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_task_of_another_node_starts_soon_beside_an_endless_backlog(url: str, shape: Shape) -> None:
    async with two_nodes(url, shape) as (backlog, other, _):
        for _ in range(3):
            before = len(backlog.began)
            await (await other.enqueue()).result(timeout=PATIENCE_SECONDS)
            assert backlog.began[before:].index("other") < SOON
        assert backlog.most == 1


async def test_a_backlog_on_each_node_leaves_permits_to_the_other(url: str) -> None:
    async with two_nodes(url, a_named_limit) as (backlog, other, _):
        handles = await other.enqueue_many(() for _ in range(20))
        before = len(backlog.began)
        for handle in handles:
            await handle.result(timeout=PATIENCE_SECONDS)
        after = backlog.began[before:]
        last = len(after) - 1 - after[::-1].index("other")
        assert "endless" in after[:last], "the first node does not starve, either"
        assert last < 20 * SOON
        assert backlog.most == 1


async def test_a_command_that_only_the_other_node_knows_starts_soon(url: str) -> None:
    """A new release is rolled out: the old one has a backlog, and only the new one has the command."""
    old, new = Engine(url, name="old", concurrency=4), Engine(url, name="new", concurrency=4)
    pools = [engine.provider("pool", servers={"http://host": 1}) for engine in (old, new)]
    backlog = Backlog()
    endless = pools[0].task(name="endless")(backlog.endless)

    @pools[1].command
    async def reload(server: Server) -> str:
        await backlog.other()
        return server.address

    async with old, new, new.worker(), old.worker() as node:
        await until(lambda: bool(node.permits._contested))
        backlog.again = endless.enqueue
        await endless.enqueue_many(() for _ in range(50))
        await until(lambda: len(backlog.began) > 5)
        before = len(backlog.began)
        assert await asyncio.wait_for(reload.send(), PATIENCE_SECONDS) == "http://host"
        assert backlog.began[before:].index("other") < SOON
        assert backlog.most == 1


async def test_a_node_that_steps_back_for_nothing_backs_off(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other node has no task: of a hundred ends few are followed by a round without a claim."""
    async with two_nodes(url, a_named_limit) as (backlog, _, node):
        rounds: list[int] = []
        should_defer = node.permits.should_defer

        def note() -> bool:
            does = should_defer()
            if does:
                rounds.append(len(backlog.began))
            return does

        monkeypatch.setattr(node.permits, "should_defer", note)
        before = len(backlog.began)
        await until(lambda: len(backlog.began) >= before + 100)
        assert 1 <= len(rounds) <= 100 / 15 + 5


async def test_a_permit_does_not_stay_free_for_a_task_that_its_node_cannot_take(url: str) -> None:
    """All slots of the other node are in use; when it has one, its task starts."""
    ours, theirs = Engine(url, name="ours"), Engine(url, name="theirs", concurrency=1)
    began: list[str] = []
    gate = Gate()
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
        await until(lambda: bool(node.permits._contested))
        await hold.enqueue()
        await gate.until_reached()
        waiting = await better.enqueue()
        for handle in await small.enqueue_many(() for _ in range(50)):
            await handle.result(timeout=PATIENCE_SECONDS)
        assert began == ["small"] * 50
        gate.open()
        await waiting.result(timeout=PATIENCE_SECONDS)


async def test_a_kind_of_which_no_more_may_run_here_runs_elsewhere(url: str) -> None:
    """Both nodes run all kinds; one has as many of the better kind as it may."""
    began: list[str] = []
    gate = Gate()

    def make(name: str) -> tuple[Engine, Any, Any]:
        engine = Engine(url, name=name, concurrency=4)
        engine.limit("license", 2)

        @engine.task(limits=["license"])
        async def small() -> None:
            began.append("small")
            await asyncio.sleep(0.001)

        @engine.task(limits=["license"], max_running=1, priority=10)
        async def few(is_held: bool) -> None:
            began.append("few")
            if is_held:
                await gate.hold()

        return engine, small, few

    (ours, small, few), (theirs, _, _) = make("ours"), make("theirs")
    async with ours, theirs, ours.worker():
        await few.enqueue(True)
        await gate.until_reached()
        await small.enqueue_many(() for _ in range(2 * SOON))
        async with theirs.worker():
            await until(lambda: len(began) > 5)
            before = len(began)
            handle = await few.enqueue(False)
            await handle.result(timeout=PATIENCE_SECONDS)
            assert began[before:].index("few") < SOON
            gate.open()


async def test_who_frees_a_contested_permit_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_nodes(url, a_named_limit) as (_, other, node):
        monkeypatch.setattr(scheduler, "DEFERRAL_SECONDS", PATIENCE_SECONDS)  # it steps back until the other is done
        told: list[list[str]] = []
        freed = node.hints.freed

        def note(names: list[str]) -> None:
            if names:
                told.append(names)
            freed(names)

        monkeypatch.setattr(node.hints, "freed", note)
        await until(lambda: bool(told))
        assert told[0] == ["license"]
        await (await other.enqueue()).result(timeout=PATIENCE_SECONDS)
