"""An old task that does not fit: one node reserves capacity for it, others fill gaps only if they end in time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.conftest import NewEngine
from tests.node.counted_functions import WITHIN_A_LEASE, node_of
from tests.node.reserving_node import HalfFull
from tests.stores.actions import pass_time
from tests.support import PATIENCE_SECONDS, Gate, until, until_state

from synergon import Candidate, Engine, Handle, Resources, State
from synergon.node.capacity import reservation
from synergon.options.durations import microseconds


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservation, "PATIENCE_SECONDS", 0.05)


class Stream:
    """Small tasks without end: each brings its successor, and ends when another one has started, so that the node is
    never empty by itself. Only if none can start does the last one give up."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.ran = 0
        self.is_over = False
        self._next = asyncio.Event()

        @engine.task(cost=Resources(cpu=1), timeout=60, **options)  # type: ignore[untyped-decorator]  # its options are a dict
        async def small() -> None:
            self.ran += 1
            self._next.set()
            self._next = successor = asyncio.Event()
            if not self.is_over:
                await small.enqueue()
                with suppress(TimeoutError):
                    await asyncio.wait_for(successor.wait(), 0.5)

        self.small = small

    async def begin(self, width: int) -> None:
        await self.small.enqueue_many([()] * width)
        await until(lambda: self.ran > width)


def stream_and_big(engine: Engine) -> tuple[Stream, Any]:
    stream = Stream(engine)

    @engine.task(cost=Resources(cpu=8))
    async def big() -> float:
        return node_of(engine).state().free["cpu"]

    return stream, big


async def test_a_stream_of_small_tasks_does_not_starve_a_big_one(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8))
    stream, big = stream_and_big(engine)
    async with engine.worker(drain=True):
        await stream.begin(20)
        handle = await big.enqueue()
        try:
            assert await handle.result(timeout=WITHIN_A_LEASE) == 0
        finally:
            stream.is_over = True


async def test_only_one_of_three_nodes_keeps_room(new_engine: NewEngine, url: str) -> None:
    """The other two go on with small ones, and nobody else takes the place of the one who keeps it."""
    engines = [new_engine(url, resources=Resources(cpu=8), sweep=0.05) for _ in range(3)]
    gates = [Gate() for _ in engines]
    places: list[int] = []

    def register(number: int) -> None:
        @engines[number].task(cost=Resources(cpu=1))
        async def hold() -> None:
            await gates[number].hold()

        @engines[number].task(cost=Resources(cpu=8))
        async def big() -> None:
            places.append(number)

    for number in range(3):
        register(number)
    async with engines[0].worker(), engines[1].worker(), engines[2].worker():
        nodes = [node_of(engine) for engine in engines]
        await engines[0].kinds["hold"].enqueue_many([()] * 20)
        await until(lambda: sum(len(node.runner.running) for node in nodes) == 20)
        for gate in gates:
            await gate.until_reached()
        try:
            handle = await engines[0].kinds["big"].enqueue()

            def keepers() -> list[int]:
                # A full node may have reserved capacity for a small one before, until another took that.
                kept = [node.reservation.reserved for node in nodes]
                return [number for number, its in enumerate(kept) if its is not None and its.id == handle.id]

            await until(lambda: bool(keepers()))
            (keeper,) = keepers()
            for _ in range(20):  # twenty claims of each: nobody else begins to
                for node in nodes:
                    node.scheduler.wake_all()
                await asyncio.sleep(0.005)
                assert keepers() == [keeper]
            (record,) = await engines[0]._store.get([handle.id])
            assert record is not None
            assert record.reserved_by == nodes[keeper].id
            gates[keeper].open()
            await handle.result(timeout=PATIENCE_SECONDS)
        finally:
            for gate in gates:
                gate.open()
    assert places == [keeper]


async def test_room_is_kept_for_none_of_a_backlog_of_equals(new_engine: NewEngine, url: str) -> None:
    """Nobody can get before them what they wait for; so nothing is written down at each claim."""
    engine = new_engine(url, resources=Resources(cpu=4), concurrency=100)
    kept: list[object] = []

    @engine.task(cost=Resources(cpu=1))
    async def work() -> None:
        kept.append(node_of(engine).reservation.reserved)

    async with engine:
        handles = await work.enqueue_many([()] * 60)
        await pass_time(engine._store, microseconds(reservation.PATIENCE_SECONDS))
        async with engine.worker():
            for handle in handles:
                await handle.result(timeout=PATIENCE_SECONDS)
    assert kept == [None] * 60


class Filled(HalfFull):
    """The same, and a task that waits for all of them."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)

        @engine.task(cost=Resources(cpu=8), timeout=60)
        async def big() -> None:
            """Nothing to do."""

        self._big = big

    async def big_one(self) -> Handle[None]:
        """That one, as soon as capacity is reserved for it."""
        return await self.begin(self._big)


async def test_others_fill_the_gap_only_if_they_end_in_time(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8))
    filled, ran = Filled(engine), list[str]()

    @engine.task(cost=Resources(cpu=1), timeout=5)
    async def brief(name: str) -> None:
        ran.append(name)

    @engine.task(cost=Resources(cpu=1), timeout=600)
    async def long(name: str) -> None:
        ran.append(name)

    @engine.task
    async def free(name: str) -> None:
        ran.append(name)

    async with engine.worker():
        big = await filled.big_one()
        late = [await long.enqueue("long"), await brief.with_options(timeout=600).enqueue("long, says the call")]
        await (await brief.enqueue("brief")).result(timeout=WITHIN_A_LEASE)
        await (await free.enqueue("free")).result(timeout=WITHIN_A_LEASE)
        assert ran == ["brief", "free"]
        assert node_of(engine).state().reserved_task == big.id
        filled.gate.open()
        for handle in (big, *late):
            await handle.result(timeout=WITHIN_A_LEASE)
        await until(lambda: node_of(engine).reservation.reserved is None)
    assert ran[2:] == ["long", "long, says the call"]


async def test_a_small_one_may_use_what_the_big_one_leaves(new_engine: NewEngine, url: str) -> None:
    """Two of eight processors are not wanted by the one that waits for six: they are free for all."""
    engine = new_engine(url, resources=Resources(cpu=8))
    gate = Gate()

    @engine.task(cost=Resources(cpu=4), timeout=60)
    async def hold() -> None:
        await gate.hold()

    @engine.task(cost=Resources(cpu=1), timeout=600)
    async def small() -> None:
        """Nothing to do."""

    async with engine.worker():
        await hold.enqueue()
        await gate.until_reached()
        waiting = await hold.with_options(cost=Resources(cpu=6)).enqueue()
        node = node_of(engine)
        await until(lambda: node.reservation.reserved is not None)
        await (await small.enqueue()).result(timeout=WITHIN_A_LEASE)
        assert node.reservation.reserved is not None
        assert node.reservation.reserved.id == waiting.id
        gate.open()
        await waiting.result(timeout=WITHIN_A_LEASE)


async def test_nothing_is_held_for_a_task_that_is_gone(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8))
    filled = Filled(engine)

    @engine.task(cost=Resources(cpu=1), timeout=600)
    async def long() -> None:
        """Nothing to do."""

    async with engine.worker():
        big = await filled.big_one()
        waits = await long.enqueue()
        await asyncio.sleep(0)
        await big.cancel()
        await waits.result(timeout=WITHIN_A_LEASE)
        assert node_of(engine).reservation.reserved is None
        filled.gate.open()


async def test_a_cordoned_node_keeps_room_for_nobody(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8))
    filled = Filled(engine)
    async with engine.worker():
        big = await filled.big_one()
        node_of(engine).scheduler.cordon()
        assert node_of(engine).state().reserved_task is None
        filled.gate.open()
        node_of(engine).scheduler.uncordon()
        await until_state(big, State.SUCCEEDED)


class Kept(HalfFull):
    """The same; and one that wants one processor waits behind it for a node that does not keep them any more."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)

        @engine.task(cost=Resources(cpu=1), timeout=600)
        async def small() -> None:
            """Nothing to do."""

        self._small = small

    async def let_others_start(self, big: Handle[Any]) -> None:
        """Neither the node nor the row says any more that capacity is reserved."""
        await (await self._small.enqueue()).result(timeout=WITHIN_A_LEASE)
        assert node_of(self._engine).reservation.reserved is None
        (record,) = await self._engine._store.get([big.id])
        assert record is not None
        assert (record.state, record.reserved_by) == (State.READY, None)


async def test_room_is_not_kept_for_a_task_whose_limit_others_have_filled(new_engine: NewEngine, url: str) -> None:
    here, elsewhere = new_engine(url, resources=Resources(cpu=8), sweep=0.05), new_engine(url)
    for engine in (here, elsewhere):
        engine.limit("license", 1)
    kept, license_is_used = Kept(here), Gate()

    @here.task(cost=Resources(cpu=8), limits=["license"], timeout=60)
    async def big() -> None:
        """Nothing to do."""

    @elsewhere.task(limits=["license"])
    async def user() -> None:
        await license_is_used.hold()

    async with here.worker(), elsewhere.worker():
        handle = await kept.begin(big)
        await user.enqueue()
        await license_is_used.until_reached()
        await kept.let_others_start(handle)
        kept.gate.open()
        license_is_used.open()
        await handle.result(timeout=WITHIN_A_LEASE)


async def test_room_is_not_kept_for_a_task_that_the_node_refuses_by_now(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8))
    kept, is_welcome = Kept(engine), True

    @engine.task(cost=Resources(cpu=8), timeout=60)
    async def big() -> None:
        """Nothing to do."""

    @big.can_accept(holds_for=0.2)
    async def accept(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        return candidates if is_welcome else []

    async with engine.worker():
        handle = await kept.begin(big)
        is_welcome = False
        await kept.let_others_start(handle)
        is_welcome = True
        kept.gate.open()
        await handle.result(timeout=WITHIN_A_LEASE)


async def test_better_ones_that_take_every_slot_do_not_starve_a_big_one(new_engine: NewEngine, url: str) -> None:
    engine = new_engine(url, resources=Resources(cpu=8), concurrency=8)
    stream = Stream(engine, priority=9)

    @engine.task(cost=Resources(cpu=8))
    async def big() -> None:
        """Nothing to do."""

    async with engine.worker(drain=True):
        await stream.begin(12)
        handle = await big.enqueue()
        try:
            await handle.result(timeout=WITHIN_A_LEASE)
        finally:
            stream.is_over = True


async def test_the_one_that_room_is_kept_for_gets_a_slot(new_engine: NewEngine, url: str) -> None:
    """However many there are that go first and cost nothing but slots."""
    engine = new_engine(url, resources=Resources(cpu=8), concurrency=2)
    filled, is_over = Filled(engine), False

    @engine.task(priority=9)
    async def plain() -> None:
        if not is_over:
            await plain.enqueue()

    async with engine.worker(drain=True):
        big = await filled.big_one()
        await plain.enqueue_many([()] * 4)
        filled.gate.open()
        try:
            await big.result(timeout=WITHIN_A_LEASE)
        finally:
            is_over = True
