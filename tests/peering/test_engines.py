"""Engines that talk to each other over a network in memory, with the sweep so rare that only hints can explain what
happens at once."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.stores.actions import Worker
from tests.support import PATIENCE_SECONDS, Gate, make_troubled, until, until_state

from synergon import Context, Engine, Retry, State, TaskCancelled
from synergon.peering.outbox import MIN_INTERVAL_SECONDS
from synergon.peering.pipe import PipeNetwork
from synergon.peering.signatures import Envelope
from synergon.peering.wire import message

RARELY = 3600


@pytest.fixture
def network() -> PipeNetwork:
    return PipeNetwork(seed=7)


@pytest.fixture
async def new_peer(sqlite_url: str, network: PipeNetwork) -> AsyncIterator[Callable[..., Engine]]:
    """Makes engines on one file and one network."""
    engines: list[Engine] = []

    def make(**settings: Any) -> Engine:
        engines.append(Engine(sqlite_url, **{"sweep": RARELY, "transport": network.transport(), **settings}))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.stop(grace=0)


async def test_a_producer_wakes_a_worker_and_is_notified_of_the_end(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(), new_peer()

    @worker.task
    async def double(number: int) -> int:
        return 2 * number

    async with worker.worker(), producer:
        for number in range(3):
            (handle,) = await producer.enqueue([producer.call("double", number=number)])
            assert await handle.result(timeout=PATIENCE_SECONDS) == 2 * number


@pytest.mark.parametrize("way", ["one", "one that expires", "list", "group"])
async def test_tasks_are_announced_before_their_caller_continues(
    new_peer: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    worker, producer = new_peer(), new_peer()

    async def quick() -> None: ...

    worker.task(quick)
    of_producer = producer.task(quick)

    async with worker.worker(), producer:
        handle = await of_producer.enqueue()
        await handle.result(timeout=PATIENCE_SECONDS)  # by now they know each other
        await asyncio.sleep(2 * MIN_INTERVAL_SECONDS)
        assert producer.peers is not None
        sent: list[str] = []
        send = producer.peers._transport.send

        async def noted(address: str, envelope: Envelope) -> bytes:
            sent.append(address)
            return await send(address, envelope)

        monkeypatch.setattr(producer.peers._transport, "send", noted)
        match way:
            case "one":
                await of_producer.enqueue()
            case "one that expires":
                await of_producer.with_options(expires_in="1h").enqueue()
            case "list":
                await of_producer.enqueue_many([(), ()])
            case "group":
                await producer.group("both", [of_producer.call(), of_producer.call()])
        assert len(sent) == 1


async def test_a_chain_runs_across_nodes_that_each_run_one_kind(new_peer: Callable[..., Engine]) -> None:
    first, second, third = new_peer(), new_peer(), new_peer()
    ended = asyncio.Event()

    @first.task
    async def one(ctx: Context) -> None:
        ctx.enqueue(first.call("two"))

    @second.task
    async def two(ctx: Context) -> None:
        ctx.enqueue(second.call("three"))

    @third.task
    async def three() -> None:
        ended.set()

    async with first.worker(), second.worker(), third.worker():
        await third.enqueue([third.call("one")])
        await asyncio.wait_for(ended.wait(), PATIENCE_SECONDS)


async def test_a_node_that_joined_after_the_directory_was_read_is_found(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(), new_peer()

    @worker.task
    async def quick() -> None: ...

    async with producer:
        assert producer.peers is not None
        async with worker.worker():
            await until(lambda: worker._node is not None and not worker._node.scheduler._dirty)
            producer.peers.update_directory([])  # read just before the node came
            (handle,) = await producer.enqueue([producer.call("quick")])
            await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_scheduled_task_starts_on_time(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(), new_peer()
    ran = asyncio.Event()

    @worker.task
    async def later() -> None:
        ran.set()

    async with worker.worker(), producer:
        await producer.enqueue([producer.call("later").with_options(delay=0.3)])
        await asyncio.wait_for(ran.wait(), PATIENCE_SECONDS)


async def test_a_cancel_reaches_the_node_that_runs_the_task(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(), new_peer()
    gate = Gate()

    @worker.task
    async def slow() -> None:
        await gate.hold()

    async with worker.worker(), producer:
        (handle,) = await producer.enqueue([producer.call("slow")])
        await gate.until_reached()
        await handle.cancel()
        record = await until_state(handle, State.CANCELLED)
        assert record.state is State.CANCELLED


async def test_a_waiting_engine_is_notified_of_a_cancel_elsewhere(new_peer: Callable[..., Engine]) -> None:
    operator, producer = new_peer(), new_peer()
    async with operator, producer:
        (handle,) = await producer.enqueue([producer.call("unknown")])
        waiting = asyncio.ensure_future(handle.result(timeout=PATIENCE_SECONDS))

        async def has_a_row() -> bool:
            return len(await producer._store.nodes()) == 1

        await until(has_a_row)
        await operator.cancel(handle.id)
        with pytest.raises(TaskCancelled):
            await waiting


async def test_a_queue_that_is_resumed_elsewhere_is_served_at_once(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(), new_peer()

    @worker.task
    async def quick() -> None: ...

    async with producer:
        await producer.pause("default")
        async with worker.worker():
            (handle,) = await producer.enqueue([producer.call("quick")])
            await producer.resume("default")
            await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_retry_by_an_operator_starts_at_once(new_peer: Callable[..., Engine]) -> None:
    worker, operator = new_peer(), new_peer()
    runs = []

    @worker.task
    async def count() -> None:
        runs.append(1)

    async with worker.worker(), operator:
        (handle,) = await operator.enqueue([operator.call("count")])
        await handle.result(timeout=PATIENCE_SECONDS)
        await operator.retry(handle.id)
        await until(lambda: len(runs) == 2)


async def test_whatever_the_network_does_each_task_runs_once(
    new_peer: Callable[..., Engine], network: PipeNetwork
) -> None:
    network.faults.drop = 0.3
    network.faults.fail = 0.2
    network.faults.duplicate = 0.5
    network.faults.longest_delay = 0.05
    runs: Counter[int] = Counter()
    workers = [new_peer(sweep=0.2) for _ in range(3)]
    producer = new_peer(sweep=0.2)

    async def body(number: int) -> None:
        runs[number] += 1

    for engine in workers:
        engine.task(name="body")(body)
    async with AsyncExitStack() as stack:
        for engine in workers:
            await stack.enter_async_context(engine.worker())
        await stack.enter_async_context(producer)
        handles = []
        for number in range(200):
            handles += await producer.enqueue([producer.call("body", number=number)])
        await asyncio.gather(*(handle.result(timeout=PATIENCE_SECONDS) for handle in handles))
    assert runs == Counter(range(200))


async def test_all_hints_lost_the_sweep_finds_the_task(new_peer: Callable[..., Engine], network: PipeNetwork) -> None:
    network.faults.drop = 1.0
    worker, producer = new_peer(sweep=0.5), new_peer(sweep=0.5)

    @worker.task
    async def quick() -> None: ...

    async with worker.worker(), producer:
        (handle,) = await producer.enqueue([producer.call("quick")])
        await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_peer_that_was_broken_is_used_again_without_a_restart(
    new_peer: Callable[..., Engine], network: PipeNetwork
) -> None:
    worker, producer = new_peer(), new_peer()

    @worker.task
    async def quick() -> None: ...

    async with worker.worker(), producer:
        assert worker.peers is not None
        (handle,) = await producer.enqueue([producer.call("quick")])
        await handle.result(timeout=PATIENCE_SECONDS)  # the worker has looked at everything that there was
        network.broken.add(str(worker.peers.address))
        sent = network.sent
        (handle,) = await producer.enqueue([producer.call("quick")])
        await until(lambda: network.sent >= sent + 3)
        assert (await handle.status()).state is State.READY
        network.broken.clear()
        await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_broken_peer_does_not_delay_the_others(new_peer: Callable[..., Engine], network: PipeNetwork) -> None:
    broken, sound, producer = new_peer(), new_peer(), new_peer()

    async def quick() -> None: ...

    broken.task(quick)
    sound.task(quick)
    async with broken.worker(concurrency=100), sound.worker(concurrency=1), producer:
        node = broken._node
        assert node is not None
        assert broken.peers is not None
        network.broken.add(str(broken.peers.address))
        node.scheduler.close()  # it claims nothing, and nobody reaches it
        (handle,) = await producer.enqueue([producer.call("quick")])
        await handle.result(timeout=PATIENCE_SECONDS)
        node.scheduler.reopen()


async def test_a_new_node_is_found_although_the_known_ones_do_not_answer(
    new_peer: Callable[..., Engine], network: PipeNetwork
) -> None:
    broken, sound, producer = new_peer(), new_peer(), new_peer()

    async def quick() -> None: ...

    broken.task(quick)
    sound.task(quick)
    async with broken.worker(), producer:
        assert broken._node is not None
        assert broken.peers is not None
        assert producer.peers is not None
        broken._node.scheduler.close()  # it claims nothing, and nobody reaches it
        network.broken.add(str(broken.peers.address))
        known = await producer.nodes()
        await producer.enqueue([producer.call("quick")])
        await until(lambda: network.sent >= 2)
        async with sound.worker():
            await until(lambda: sound._node is not None and not sound._node.scheduler._dirty)
            producer.peers.update_directory(known)  # read just before the node came
            (handle,) = await producer.enqueue([producer.call("quick")])
            await handle.result(timeout=PATIENCE_SECONDS)
        broken._node.scheduler.reopen()


async def test_a_burst_makes_few_requests(new_peer: Callable[..., Engine], network: PipeNetwork) -> None:
    worker, producer = new_peer(), new_peer()
    gate = Gate()

    @worker.task
    async def held() -> None:
        await gate.hold()

    async with worker.worker(concurrency=10), producer:
        sent = network.sent
        for _ in range(100):
            await producer.enqueue([producer.call("held") for _ in range(1000)])
        await gate.until_reached()
        assert network.sent - sent < 300
        worker._node.scheduler.close()  # type: ignore[union-attr]  # it runs
        gate.open()


async def test_a_node_with_enough_capacity_sends_no_hints(
    new_peer: Callable[..., Engine], network: PipeNetwork
) -> None:
    one, other = new_peer(), new_peer()

    async def quick() -> None: ...

    one.task(quick)
    other.task(quick)

    async def is_quiet() -> bool:
        sent = network.sent
        await asyncio.sleep(0.05)
        return network.sent == sent

    async with one.worker() as node, other.worker() as other_node:
        assert one.peers is not None
        assert other.peers is not None
        directories = {other_node.id: one.peers._router.directory, node.id: other.peers._router.directory}
        await until(lambda: all(directory.get(peer) is not None for peer, directory in directories.items()))
        await until(is_quiet)
        sent = network.sent
        (handle,) = await one.enqueue([one.call("quick")])
        await handle.result(timeout=PATIENCE_SECONDS)
        assert network.sent == sent


async def test_an_engine_sends_no_hints_to_its_former_node_id(new_peer: Callable[..., Engine]) -> None:
    engine = new_peer()

    @engine.task
    async def quick() -> None: ...

    async with engine:
        async with engine.worker():
            rows = await engine._store.nodes()
        assert engine.peers is not None
        engine.peers.update_directory(rows)  # read just before the row went
        await quick.enqueue()
        await engine.peers._router.wait_routed(PATIENCE_SECONDS)
        assert len(rows) == 1
        assert not engine.peers._router._outboxes


async def test_an_engine_that_only_waits_is_not_listed_as_a_node(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(), new_peer()

    @worker.task
    async def quick() -> None: ...

    async with worker.worker(), producer:
        (handle,) = await producer.enqueue([producer.call("quick")])
        await handle.result(timeout=PATIENCE_SECONDS)

        async def has_a_row() -> bool:
            return len(await producer._store.nodes()) == 2

        await until(has_a_row)
        assert len(await producer.nodes()) == 1
        await producer.close()

        async def has_none() -> bool:
            return len(await worker._store.nodes()) == 1

        await until(has_none)


async def test_an_idle_node_rarely_queries_the_store(
    new_peer: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here all that comes from time to time comes ten times as often as it usually does."""
    monkeypatch.setattr("synergon.node.duties.sweep.SHORTEST_SECONDS", 0.1)
    monkeypatch.setattr("synergon.node.duties.sweep.LONGEST_SECONDS", 3.0)
    worker = new_peer(sweep=None, lease=3)
    stores = make_troubled(worker)

    @worker.task
    async def quick() -> None: ...

    async with worker.worker():
        calls = stores[-1].calls
        await until(lambda: calls["claim"] >= 3)  # the sweep grows rarer from the first one on
        before, began = Counter(calls), time.monotonic()
        await asyncio.sleep(1.5)
        asked, usual_seconds = calls - before, 10 * (time.monotonic() - began)
        print(f"an idle node's statements in {usual_seconds:.1f} s as they usually are: {dict(asked)}")
        assert asked.total() <= 0.5 * usual_seconds + 1  # a beat may fall to either side of the ends


async def test_tasks_started_by_a_peer_lower_its_estimated_free_slots(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(concurrency=5), new_peer()
    async with worker.worker() as node, producer:
        peers = producer.peers
        assert peers is not None
        await until(lambda: peers._router.directory.get(node.id) is not None)
        peer = peers._router.directory.get(node.id)
        assert peer is not None
        for hints, free in (
            (message(started={"a": 1, "b": 2}), 2),
            (message(started={"a": 9}), 0),
            (message(started={"a": 9}, free=4), 4),
        ):
            peers._handle_hints(node.id, hints)
            assert peer.free == free


async def test_peers_take_over_the_alarms_of_a_node_that_leaves(new_peer: Callable[..., Engine]) -> None:
    leaving, staying = new_peer(), new_peer()
    attempts: list[str] = []
    ran = asyncio.Event()

    def register(engine: Engine, name: str) -> None:
        @engine.task(name="again", retry=Retry(attempts=1000, first=1, factor=1, jitter=0))
        async def again() -> None:
            attempts.append(name)
            if name == "leaving":
                raise ValueError
            ran.set()

    register(leaving, "leaving")
    register(staying, "staying")
    async with staying.worker():
        async with leaving.worker():
            await until(lambda: leaving.peers is not None and len(list(leaving.peers._router.directory)) == 1)
            (handle,) = await leaving.enqueue([leaving.call("again")])
            await until_state(handle, State.SCHEDULED)
        await asyncio.wait_for(ran.wait(), PATIENCE_SECONDS)
    assert attempts == ["leaving"] * (len(attempts) - 1) + ["staying"]


async def test_a_node_reports_the_kinds_that_it_cannot_start(new_peer: Callable[..., Engine]) -> None:
    worker = new_peer()
    gate = Gate()

    @worker.task(max_running=1)
    async def narrow() -> None:
        await gate.hold()

    @worker.task
    async def wide() -> None: ...

    async with worker.worker(concurrency=9):
        assert worker._node is not None
        assert worker._node.full(["narrow", "wide", "unknown"]) == ("unknown",)
        await narrow.enqueue()
        await gate.until_reached()
        assert worker._node.full(["narrow", "wide"]) == ("narrow",)
        gate.open()


async def test_a_late_cancel_does_not_stop_a_retried_task(new_peer: Callable[..., Engine]) -> None:
    worker, producer = new_peer(), new_peer()
    gate = Gate()

    @worker.task
    async def held() -> None:
        await gate.hold()

    async with worker.worker(), producer:
        (handle,) = await producer.enqueue([producer.call("held")])
        await gate.until_reached()
        await handle.cancel()
        await until_state(handle, State.CANCELLED)
        await producer.retry(handle.id)
        await until_state(handle, State.RUNNING)
        assert worker._node is not None
        worker._node.handle_hints(message(cancel=(handle.id,)))  # said before, heard now
        gate.open()
        assert (await until_state(handle, State.SUCCEEDED, State.CANCELLED)).state is State.SUCCEEDED


async def test_reaping_the_last_member_of_a_group_wakes_the_node_of_its_follow_up(
    new_peer: Callable[..., Engine],
) -> None:
    buries, follows = new_peer(), new_peer()
    ran = asyncio.Event()

    @follows.task
    async def total() -> None:
        ran.set()

    async with buries.worker(), follows.worker():
        assert buries._node is not None
        group = await buries.group("parts", [buries.call("part")], then=buries.call("total"))
        assert await (await Worker.start(buries._store, "dead")).claim("part")
        await buries.cancel(group.handles[0].id)
        await buries._store.unregister("dead")
        await buries._node.reaper.reap()
        await asyncio.wait_for(ran.wait(), PATIENCE_SECONDS)
