"""Why a task waits where nodes differ, come and go, or have been told nothing yet; and tasks that do not wait."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.conftest import NewEngine
from tests.node import process_functions as process_bodies
from tests.node.counted_functions import node_of
from tests.node.explained_nodes import crew_of
from tests.support import PATIENCE_SECONDS, Gate, ThreadGate, a_row, make_troubled, until, until_state

from synergon import Engine, Handle, Rate, Resources, Snooze, State, TaskNotFound, Why
from synergon.explain.explanation import Cause, Explanation
from synergon.explain.shared_state import SharedState
from synergon.explain.text import clause, reasons
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.limits import ServerRecord
from synergon.model.process_identity import this_process
from synergon.model.task_records import TaskRecord
from synergon.node.capacity import preemption
from synergon.options.durations import microseconds


async def said(handle: Handle[Any], pattern: str) -> Explanation:
    """What is said of the task, once it is this."""
    found: list[Explanation] = []

    async def is_published() -> bool:
        found[:] = [await handle.explain()]
        return re.fullmatch(pattern, str(found[0])) is not None

    try:
        await until(is_published)
    except TimeoutError:
        raise AssertionError(f"not {pattern!r} but {found[0].sentence!r}\n{found[0]}") from None
    return found[0]


async def test_three_nodes_have_a_reason_each(memory_url: str) -> None:
    async with crew_of(3, memory_url) as crew:
        a, b, c = crew.engines
        (first,) = await crew.running("train", 1, needs={"zone:eu"})
        runs_on = (await first.status()).node_id
        full = next(engine for engine in (a, b, c) if node_of(engine).id == runs_on)
        cordoned = next(engine for engine in (a, b, c) if engine is not full)
        (other,) = (engine for engine in (a, b, c) if engine not in (full, cordoned))
        await a.cordon(node_of(cordoned).id)
        node_of(other)._admission.labels = frozenset()
        handle = await crew.enqueue("train", needs={"zone:eu"})
        words = {
            full.settings.name: rf"is full \(gpu 1 of 1 used by task {first.id}\)",
            cordoned.settings.name: r"is cordoned since \d\d:\d\d",
            other.settings.name: "lacks label zone:eu",
        }
        reasons = ", ".join(f"{name} {words[name]}" for name in sorted(words))
        await crew.said(handle, rf"ready, due for \d+ s; 3 nodes run `train`: {reasons}")

        async def is_told_how_old() -> bool:
            here, *others = (await handle.explain()).nodes
            return here.age == 0 and all(0 < node.age < 10 for node in others)

        await until(is_told_how_old)


async def test_room_that_is_kept_is_said_of_both(memory_url: str) -> None:
    async with crew_of(1, memory_url, concurrency=5) as crew:
        node_of(crew.first).reservation.patience = 50_000
        await crew.running("hold", 1, cost=Resources(cpu=3))
        big = await crew.enqueue("hold", cost=Resources(cpu=4))
        pattern = (
            r"ready, due for \d+ s; 1 node runs `hold`: node-0 is full \(cpu 3 of 4 used by task 1, and it needs 4\)"
        )
        explanation = await crew.said(big, f"{pattern}; node-0 has reserved capacity for it")
        assert explanation.reserved_by == node_of(crew.first).id
        small = await crew.enqueue("quick", cost=Resources(cpu=1))
        await crew.said(
            small, rf"ready, due for \d+ s; 1 node runs `quick`: node-0 has reserved capacity for task {big.id}"
        )
        crew.gate.open()
        await until_state(small, State.SUCCEEDED)


async def test_one_of_three_nodes_keeps_room_and_the_others_fill_theirs(memory_url: str) -> None:
    async with crew_of(3, memory_url, concurrency=5) as crew:
        for engine in crew.engines:
            node_of(engine).reservation.patience = 50_000
        held = await crew.running("hold", 3, cost=Resources(cpu=3))
        assert len({(await one.status()).node_id for one in held}) == 3
        big = await crew.enqueue("hold", cost=Resources(cpu=4))
        clause = r"is full \(cpu 3 of 4 used by task \d, and it needs 4\)"
        explanation = await crew.said(big, crew.each("hold", clause) + r"; node-\d has reserved capacity for it")
        small = await crew.enqueue("hold", cost=Resources(cpu=1))
        record = await until_state(small, State.RUNNING)
        assert record.node_id != explanation.reserved_by
        crew.gate.open()
        await until_state(big, State.SUCCEEDED)


async def test_the_only_node_stops(memory_url: str) -> None:
    async with crew_of(1, memory_url) as crew:
        await crew.running("hold", 1)
        node = node_of(crew.first)
        stop = asyncio.ensure_future(crew.first._stop_node(60))
        await until(lambda: not node.scheduler.may_claim)
        handle = await crew.enqueue("quick")
        await crew.said(handle, crew.each("quick", "is stopping"))
        crew.gate.open()
        await stop
        await crew.said(handle, r"ready, due for \d+ s; no live node knows kind `quick`")
        async with crew.first.worker():
            await until_state(handle, State.SUCCEEDED)


async def test_a_node_that_stops_and_one_that_drains_take_no_more(memory_url: str) -> None:
    async with crew_of(3, memory_url) as crew:
        held = await crew.running("hold", 6)
        by_node = {(await handle.status()).node_id for handle in held}
        assert len(by_node) == 3
        _, draining, stopping = crew.engines
        await crew.first.drain(node_of(draining).id)
        stop = asyncio.ensure_future(stopping._stop_node(60))
        handle = await crew.enqueue("hold")
        full = r"is full \(2 of 2 slots in use\)"
        pattern = (
            rf"ready, due for \d+ s; 3 nodes run `hold`: node-0 {full}, node-1 drains and {full}, node-2 is stopping.*"
        )
        explanation = await crew.said(handle, pattern)
        assert [cause.why for cause in explanation.nodes[2].causes] == [Why.STOPPING, Why.SLOTS]
        crew.gate.open()
        await stop
        await until_state(handle, State.SUCCEEDED)


async def test_a_node_that_is_silent_and_one_that_has_said_nothing(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url)
    async with engine:
        for name, lease in {"ghost": 0.000001, "newborn": 60}.items():
            await engine._store.register(a_row(name, "quick", lease=microseconds(lease)))
        (handle,) = await engine.enqueue([engine.call("quick")])
        ghost = r"ghost has not been heard from for \d+ s"
        pattern = rf"ready, due for \d+ s; 2 nodes run `quick`: {ghost}, newborn has published no status yet"
        await said(handle, pattern)
        await engine._store.unregister("newborn")
        await said(handle, r"ready, due for \d+ s; no live node knows kind `quick`")


async def test_nodes_of_one_name_are_told_apart(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url)
    async with engine:
        for node_id in ("one", "two"):
            await engine._store.register(a_row(node_id, "quick", name="twin"))
        (handle,) = await engine.enqueue([engine.call("quick")])
        silence = "has published no status yet"
        await said(handle, rf"ready, due for .*: twin \(one\) {silence}, twin \(two\) {silence}")


async def test_what_nobody_looks_at_is_due_or_expired(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def quick() -> None: ...

    async with engine:
        due = await quick.with_options(delay=0.01).enqueue()
        late = await quick.with_options(expires_in=0.01).enqueue()
        nobody = "no live node knows kind `quick`"
        await said(due, rf"scheduled: due for \d+ s, and the next check by a node makes it ready, {nobody}")
        await said(late, rf"ready, due for \d+ s; expired for \d+ s, and the next check by a node ends it, {nobody}")
        async with engine.worker():
            await until_state(due, State.SUCCEEDED)
            await until_state(late, State.FAILED)
            await said(late, r"failed at \d\d:\d\d \(expired\).*")


@pytest.mark.parametrize("count", [1, 3])
async def test_what_can_start_is_told_and_who_goes_first(count: int, memory_url: str) -> None:
    """Claims are held back, so that what could start does not."""
    gate = Gate()

    async with crew_of(count, memory_url, concurrency=1) as crew:
        for engine in crew.engines:
            real = engine._store.claim
            node_of(engine).scheduler._store = _Held(engine._store, gate, real)
        first = await crew.enqueue("quick")
        second = await crew.enqueue("quick")
        names = ", ".join(f"node-{number}" for number in range(count))
        explanation = await crew.said(first, rf"ready, due for \d+ s; it can start on {names}")
        assert (len(explanation.can_start_on), explanation.position) == (count, 1)
        explanation = await crew.said(
            second, crew.each("quick", "has capacity, and other tasks go first") + ", position 2"
        )
        assert explanation.position == 2
        gate.open()
        await until_state(second, State.SUCCEEDED)


class _Held:
    """The real store, whose claims wait at a gate."""

    def __init__(self, store: Any, gate: Gate, claim: Callable[[Any], Any]) -> None:
        self._store = store
        self._gate = gate
        self._claim = claim

    async def claim(self, request: Any) -> Any:
        await self._gate.hold()
        return await self._claim(request)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("requirements", [{}, {"needs": {"zone:us"}, "cost": Resources(cpu=1)}])
async def test_nothing_is_read_that_grows_with_the_backlog(
    requirements: dict[str, Any], memory_url: str, new_engine: NewEngine
) -> None:
    engine = new_engine(memory_url, name="node-a", concurrency=1, labels={"zone:us"}, resources=Resources(cpu=2))
    stores = make_troubled(engine)
    gate = Gate()

    @engine.task
    async def hold() -> None:
        await gate.hold()

    async with engine.worker():
        await hold.enqueue()
        await gate.until_reached()
        handle = await hold.with_options(**requirements).enqueue()
        stores[-1].calls.clear()
        await said(handle, r"ready, due for \d+ s; 1 node runs `hold`: node-a is full \(1 of 1 slots in use\)")
        assert not stores[-1].calls.keys() & {"queues", "counts", "list_tasks"}
        await engine.pause("default")
        await said(handle, r"ready, due for \d+ s; queue default is paused since \d\d:\d\d")
        gate.open()


async def test_positions_are_exact_up_to_a_thousand(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def quick() -> None: ...

    async with engine:
        await engine.pause("default")
        handles = await engine.enqueue([quick.call() for _ in range(1003)])
        positions = [(await handles[place].explain()).position for place in (0, 998, 999, 1000, 1002)]
        assert positions == [1, 999, 1000, 1001, 1001]


@pytest.mark.parametrize("count", [1, 3])
async def test_places_of_child_processes(count: int, memory_url: str, new_engine: NewEngine, tmp_path: Path) -> None:
    engines = [new_engine(memory_url, name=f"node-{number}", child_processes=1, sweep=0.05) for number in range(count)]
    for engine in engines:
        process_bodies.on(engine, process_bodies.sleep_long)
    kind = engines[0].kinds["sleep_long"]
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine.worker(grace=0))
        held: list[Handle[Any]] = [await kind.enqueue(str(tmp_path / f"held-{number}")) for number in range(count)]
        for one in held:
            await until_state(one, State.RUNNING)
        handle: Handle[Any] = await kind.enqueue(str(tmp_path / "next"))
        for engine in engines:
            lease = node_of(engine).membership.lease
            assert lease is not None
            lease.renew_soon()
        reasons = ", ".join(f"node-{number} has no free child process" for number in range(count))
        await said(handle, rf"ready, due for \d+ s; {count} nodes? runs? `sleep_long`: {reasons}")
        await held[0].cancel()
        await until_state(handle, State.RUNNING)


async def test_a_rate_is_blamed_only_for_the_moment_that_it_has_set(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url)

    @engine.task(rate=Rate(2, per="1h", burst=2))
    async def paced(*, nap: float = 0.0) -> None:
        if nap:
            raise Snooze(nap)

    async with engine.worker():
        delayed = await paced.with_options(delay=60).enqueue()
        await said(delayed, r"scheduled: its time comes in [456]\d s")
        snoozed = await paced.enqueue(nap=1200.0)
        await said(snoozed, r"scheduled: its function asked to be run again in (19|20) min")
        await engine.cancel(delayed.id)
        await engine.cancel(snoozed.id)
        await (await paced.enqueue()).result(timeout=PATIENCE_SECONDS)
        await said(
            await paced.enqueue(), r"scheduled: it may start in (29|30) min by the rate of the key queue of its kind"
        )


# ---------------------------------------------------------------- what does not wait


async def test_a_running_task_says_where_and_what_is_odd_about_it(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url, name="node-a")
    pool = engine.provider("pool", servers={"http://one": 1})
    gate = Gate()

    @pool.task(retry=5)
    async def stubborn() -> None:
        try:
            await gate.hold()
        except asyncio.CancelledError:
            await gate.hold()

    async with engine.worker():
        handle = await stubborn.enqueue()
        await until_state(handle, State.RUNNING)
        running = r"running on node-a, on server http://one for \d+ s, attempt 1 of 5"
        await said(handle, running)
        await handle.cancel()
        await said(handle, f"{running}; its cancellation was requested")
        gate.open()
        await until_state(handle, State.CANCELLED)
        assert re.fullmatch(r"cancelled at \d\d:\d\d.*", str(await handle.explain()))


async def test_a_body_that_cannot_be_stopped_is_overdue(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url, name="node-a")
    release = threading.Event()

    @engine.task(timeout=0.05)
    def deaf() -> None:
        release.wait(30)

    async with engine.worker():
        handle = await deaf.enqueue()
        odd = "; overdue: its function could not be stopped at its deadline"
        await said(handle, rf"running on node-a for \d+ s, attempt 1 of 1{odd}")
        release.set()
        await until_state(handle, State.FAILED)


@pytest.mark.usefixtures("quick_heartbeat")
async def test_an_urgent_task_that_waits_for_others_to_yield_does_not_run_yet(
    url: str, new_engine: NewEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "YIELD_SECONDS", PATIENCE_SECONDS)
    engine, elsewhere = new_engine(url, name="node-a", concurrency=1), new_engine(url)
    gate = ThreadGate()

    @engine.task(preemptible=True)
    def deaf() -> None:
        gate.hold()

    @engine.task(urgent=True)
    async def alarm() -> None: ...

    async with engine, elsewhere, engine.worker(grace=0), AsyncExitStack() as stack:
        stack.callback(gate.open)
        await deaf.enqueue()
        await gate.until_reached()
        handle = await alarm.enqueue()
        pattern = r"claimed by node-a, waits for others to yield to it for \d+ s, attempt 1 of \d+"
        await said(handle, pattern)
        await until(lambda: is_said_of(elsewhere, handle.id, pattern))  # a heartbeat later
        gate.open()
        await until_state(handle, State.SUCCEEDED)


async def is_said_of(engine: Engine, task_id: int, pattern: str) -> bool:
    return re.fullmatch(pattern, str(await engine.explain(task_id))) is not None


async def test_that_nobody_could_ever_run_it_is_said_before_its_time_has_come(url: str, new_engine: NewEngine) -> None:
    engine = new_engine(url, name="node-a", resources=Resources(cpu=1))

    @engine.task
    async def work() -> None: ...

    never = "; 1 node runs `work`: node-a is too small \\(it needs cpu 9, and the node has 1 in total\\)"
    never += "; no live node could ever run it"
    cost = Resources(cpu=9)
    async with engine, engine.worker():
        later = await work.with_options(delay=100, cost=cost).enqueue()
        explanation = await said(later, rf"scheduled: its time comes in \d+ s{never}")
        assert [cause.why for cause in explanation.nodes[0].causes] == [Why.TOO_SMALL]
        members = [work.with_options(delay=100).call()]
        await engine.group("all", members, then=work.with_options(cost=cost).call())
        (follower,) = await engine.tasks(state=State.WAITING)
        found = await engine.explain(follower.id)
        assert re.fullmatch(rf"waits for task \d+ \(work, scheduled\){never}", str(found)), found
        assert (await (await work.with_options(delay=100).enqueue()).explain()).nodes == ()


@pytest.mark.parametrize("is_lease_over", [True, False])
async def test_a_task_of_a_dead_node_is_about_to_be_taken_from_it(
    url: str, new_engine: NewEngine, is_lease_over: bool
) -> None:
    engine = new_engine(url)
    process = this_process()
    async with engine:
        if not is_lease_over:
            process = replace(process, started=process.started - 1)
        await engine._store.register(a_row("ghost", "quick", process=process))
        (handle,) = await engine.enqueue([engine.call("quick")])
        await engine._store.claim(ClaimRequest(node_id="ghost", kinds=(KindRequest(kind="quick", count=1),), limit=1))
        if is_lease_over:
            keeper = await engine._store.keeper()
            await keeper.renew("ghost", microseconds(0.001))
            await keeper.close()
        pattern = r"running on ghost for \d+ s, attempt 1; its node has not been heard from, and loses it soon"
        await said(handle, pattern)

        @engine.task
        async def quick() -> None: ...

        async with engine.worker(sweep=0.05):
            await until_state(handle, State.SUCCEEDED)


async def test_what_failed_says_how(memory_url: str, new_engine: NewEngine) -> None:
    engine = new_engine(memory_url)

    @engine.task
    async def fails() -> None:
        raise ValueError("no such file\nand more")

    async with engine.worker():
        handle = await fails.enqueue()
        await until_state(handle, State.FAILED)
        pattern = r"failed at \d\d:\d\d after 1 attempt \((error|exhausted)\): ValueError: no such file"
        assert re.fullmatch(pattern, str(await handle.explain()))


async def test_there_is_nothing_to_say_of_a_task_that_is_not_there(memory_url: str, new_engine: NewEngine) -> None:
    async with new_engine(memory_url) as engine:
        with pytest.raises(TaskNotFound, match="there is no task 77"):
            await engine.explain(77)


def test_code_without_a_loop_can_ask(sqlite_url: str) -> None:
    engine = Engine(sqlite_url)

    @engine.task
    async def quick() -> None: ...

    with engine:
        handle = quick.enqueue_sync()
        assert handle.explain_sync().causes == (Cause(why=Why.UNKNOWN_KIND, subject="quick"),)


# ---------------------------------------------------------------- what a store seldom holds


def test_a_command_for_a_server_that_is_gone_says_so() -> None:
    now = datetime.now(UTC)
    servers = [ServerRecord(provider="pool", address="http://one", capacity=1, in_use=0)]
    task = TaskRecord(
        id=1,
        kind="obey",
        queue="default",
        state=State.READY,
        run_at=now,
        enqueued_at=now,
        is_command=True,
        target="http://two",
    )
    kind_request = KindRequest(kind="obey", count=1, provider="pool", is_command=True)
    (cause,) = SharedState([], servers, [], now).causes(task, kind_request)
    assert (cause.why, clause(cause, now)) == (Why.REMOVED, "server http://two was removed")


def test_a_server_on_trial_takes_one_at_a_time() -> None:
    now = datetime.now(UTC)
    server = ServerRecord(provider="pool", address="http://one", capacity=8, in_use=1, failures=5, backs_off_until=now)
    task = TaskRecord(id=1, kind="work", queue="default", state=State.READY, run_at=now, enqueued_at=now)
    (cause,) = SharedState([], [server], [], now).causes(task, KindRequest(kind="work", count=1, provider="pool"))
    assert (cause.why, cause.subject) == (Why.ON_TRIAL, "http://one")


@pytest.mark.parametrize("why", Why)
def test_there_are_words_for_every_cause(why: Why) -> None:
    assert clause(Cause(why=why, subject="it", tasks=(7,), in_use=1, of=2, needed=1), datetime.now(UTC))


def test_all_that_a_node_is_full_of_stands_in_one_clause() -> None:
    causes = [
        Cause(why=Why.CORDONED),
        Cause(why=Why.SLOTS, in_use=4, of=4),
        Cause(why=Why.LABEL_MISSING, subject="a"),
        Cause(why=Why.RESOURCE, subject="gpu", in_use=1, of=1, needed=1, tasks=(812,)),
    ]
    full = "is full (4 of 4 slots in use; gpu 1 of 1 used by task 812)"
    assert reasons(causes, datetime.now(UTC)) == f"is cordoned, {full} and lacks label a"
    assert reasons(causes[:1], datetime.now(UTC)) == "is cordoned"
