"""Outcomes that free permits go to the store with the next claim, and by themselves where there is none."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from datetime import UTC, datetime
from typing import Any, Final, cast

import pytest
from msgspec import Raw
from tests.node.every_store import every_url as every_url
from tests.stores.actions import add_many, new_node, states
from tests.support import PATIENCE_SECONDS, Gate, TroubledStore, is_away, make_troubled, until

from synergon import Engine, State
from synergon.errors import DataRejected, StoreUnavailable
from synergon.model.claims import Claim, ClaimRequest
from synergon.model.clock import SystemClock
from synergon.model.node_status import KindStatus, NodeStatus, encode_status
from synergon.model.nodes import NodeRecord, ProcessIdentity
from synergon.model.outcomes import FencedOutcome, Succeeded
from synergon.node.attempts import completer as completers
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.outcomes import handed_back
from synergon.node.callbacks.callbacks import Callbacks
from synergon.node.callbacks.hooks import Hooks
from synergon.node.claims import scheduler as schedulers
from synergon.node.claims.admission import Admission
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler
from synergon.node.claims.shared_permits import SharedPermits
from synergon.node.node import Node
from synergon.node.signals import Signals
from synergon.node.store_outage import StoreOutage
from synergon.stores.base import Store

PROCESS: Final = ProcessIdentity(host="host", boot_id="boot", pid_namespace="pid:[1]", pid=4711, started=1.5)
LICENSED: Final = KindStatus(limits=("license",))


def another_node(**kinds: KindStatus) -> NodeRecord:
    return NodeRecord(
        id="other",
        name="other",
        process=PROCESS,
        kinds=tuple(kinds),
        queues=None,
        concurrency=1,
        version="1",
        address=None,
        registered_at=datetime.now(UTC),
        lease_remaining=30.0,
        published=Raw(encode_status(NodeStatus(is_published=True, kinds=kinds))),
    )


class BenchSignals(Signals):
    """Passes on what the test looks at."""

    def __init__(self, bench: Stand) -> None:
        self._bench = bench

    def ready(self, kinds: Iterable[str]) -> None:
        self._bench.scheduler.wake(kinds)

    def claimed(self, claims: list[Claim]) -> None:
        self._bench.start(claims)

    def exchangeable(self) -> None:
        self._bench.scheduler.claim_soon()

    def ended(self, ids: Collection[int]) -> None:
        self._bench.ended.extend(ids)

    def permits_freed(self, kinds: Iterable[str | None]) -> None:
        self._bench.freed(kinds)


class Stand:
    """A scheduler and a completer, which the test steps by hand, on a memory store."""

    def __init__(self, engine: Engine) -> None:
        async def body() -> None: ...

        kinds: dict[str, Any] = {
            "shared": engine.task(name="shared", limits=["license"])(body),
            "few": engine.task(name="few", limits=["license"], max_running=1)(body),
            "free": engine.task(name="free")(body),
        }
        logger = logging.LoggerAdapter(logging.getLogger("synergon"), {})
        clock = SystemClock()
        self.store = TroubledStore(engine._store)
        self.ledger = Ledger(3, 1)
        self.permits = SharedPermits(kinds)
        self.claims: list[Claim] = []
        self.ended: list[int] = []
        self.requests: list[ClaimRequest] = []
        self.completer = Completer(
            cast("Store", self.store),
            clock,
            logger,
            BenchSignals(self),
            Hooks(clock, logger, Callbacks(logger)),
            StoreOutage(clock, logger),
        )
        self.scheduler = Scheduler(
            cast("Store", self.store),
            Admission(kinds, self.ledger, None),
            kinds,
            BenchSignals(self),
            completer=self.completer,
            permits=self.permits,
        )
        self.scheduler.node_id = "node-1"

    def freed(self, kinds: Any) -> None:
        self.scheduler.permits_freed(kinds)

    def start(self, claims: list[Claim]) -> None:
        self.claims += claims
        for claim in claims:
            self.ledger.take(claim.kind)

    async def add(self, number: int, kind: str = "shared") -> list[int]:
        ids = await add_many(cast("Store", self.store), number, kind=kind)
        self.scheduler.wake([kind])
        return ids

    def end(self, claim: Claim) -> None:
        """As the runner does when a task function has returned."""
        self.claims.remove(claim)
        self.ledger.release(claim.kind)
        kind = None if claim.kind == "free" else claim.kind
        self.completer.add(FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=Succeeded(), kind=kind))
        self.scheduler.capacity_freed()

    @property
    def is_awake(self) -> bool:
        return self.scheduler._event.is_set()

    async def settle(self) -> None:
        """Step both for as long as there is a reason."""
        for _ in range(100):
            if self.is_awake:
                await self.scheduler.step()
            elif self.completer._event.is_set():
                await self.completer.step()
            else:
                return
        raise AssertionError("they find no rest")

    async def check_written(self, *ids: int) -> None:
        """All of these have ended, and nothing is left to be written."""
        await asyncio.wait_for(self.completer.flushed(), 1)
        assert not self.completer.unwritten
        assert await states(cast("Store", self.store), ids) == [State.SUCCEEDED] * len(ids)
        assert sorted(self.ended) == sorted(ids)


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    """After a first claim, which has found nothing."""
    engine = Engine("memory://")
    engine.limit("license", 1)
    async with engine:
        await engine._store.register(new_node("node-1"))
        made = Stand(engine)
        await made.settle()
        made.store.calls.clear()
        yield made


async def run_one(stand: Stand, number: int = 1) -> tuple[list[int], Claim]:
    """So many tasks of the shared kind, of which the first runs."""
    ids = await stand.add(number)
    await stand.settle()
    (claim,) = stand.claims
    stand.store.calls.clear()
    return ids, claim


# ---------------------------------------------------------------- step by step


async def test_an_outcome_of_a_shared_kind_goes_with_the_next_claim(stand: Stand) -> None:
    ids, claim = await run_one(stand, 2)
    stand.end(claim)
    await stand.settle()
    assert [claim.id for claim in stand.claims] == ids[1:]
    await stand.check_written(ids[0])
    assert (stand.store.calls["exchange"], stand.store.calls["finish"]) == (1, 0)
    assert stand.store.calls["claim"] <= 1, "nothing is asked twice"


async def test_an_outcome_of_another_kind_is_written_by_itself(stand: Stand) -> None:
    (task_id,) = await stand.add(1, "free")
    await stand.settle()
    stand.end(stand.claims[0])
    await stand.settle()
    await stand.check_written(task_id)
    assert (stand.store.calls["exchange"], stand.store.calls["finish"]) == (0, 1)


async def test_an_outcome_wakes_the_scheduler_though_no_slot_was_freed(stand: Stand) -> None:
    """A claim is handed back that never had a slot: the node was told to stop while the claim was under way."""
    ids = await stand.add(1)
    request = stand.scheduler._admission.request("node-1", {"shared"})
    assert request is not None
    (claim,) = await stand.store.claim(request)
    await stand.settle()
    stand.completer.add(handed_back(claim))
    assert stand.is_awake
    await stand.settle()
    assert [claim.id for claim in stand.claims] == ids, "it was claimed again"
    await asyncio.wait_for(stand.completer.flushed(), 1)


async def test_more_outcomes_than_one_exchange_takes_are_all_written(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completers, "BATCH", 2)
    await stand.store.set_limit("license", 10)
    stand.ledger.concurrency = 10
    ids = await stand.add(9)
    await stand.settle()
    assert len(stand.claims) == 9
    for claim in list(stand.claims):
        stand.end(claim)
    await stand.settle()
    await stand.check_written(*ids)


async def test_outcomes_are_written_where_there_is_no_capacity_for_a_claim(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completers, "BATCH", 1)
    await stand.store.set_limit("license", 3)
    ids = await stand.add(3)
    await stand.settle()
    ended = list(stand.claims)
    for _ in range(3):
        stand.ledger.take("free")
    for claim in ended:
        stand.end(claim)
    await stand.settle()
    assert stand.store.calls["exchange"] == 0
    await stand.check_written(*ids)
    stand.ledger.release("free")
    more = await stand.add(1)
    await stand.settle()
    assert [claim.id for claim in stand.claims] == more


async def test_a_kind_without_capacity_takes_the_permit_when_it_has_some(stand: Stand) -> None:
    """`few` may take the permit that `shared` frees, and no more of it may run here at that moment."""
    ids, claim = await run_one(stand)
    (few,) = await stand.add(1, "few")
    await stand.settle()
    assert stand.scheduler.is_idle("few"), "there is no permit for it"
    stand.ledger.take("few")
    stand.end(claim)
    await stand.settle()
    assert stand.claims == []
    stand.ledger.release("few")
    stand.scheduler.capacity_freed()
    await stand.settle()
    assert [claim.id for claim in stand.claims] == [few]
    await stand.check_written(*ids)


@pytest.mark.parametrize("close", ["cordon", "close"])
async def test_where_nothing_is_claimed_outcomes_are_written_by_themselves(stand: Stand, close: str) -> None:
    await stand.store.set_limit("license", 2)
    ids = await stand.add(2)
    await stand.settle()
    before, after = stand.claims
    stand.end(before)
    getattr(stand.scheduler, close)()
    stand.end(after)
    await stand.settle()
    await stand.check_written(*ids)
    assert (stand.store.calls["exchange"], stand.store.calls["finish"]) == (0, 1)


@pytest.mark.parametrize("reopen", ["uncordon", "reopen"])
async def test_who_claims_again_exchanges_again(stand: Stand, reopen: str) -> None:
    ids, claim = await run_one(stand, 2)
    getattr(stand.scheduler, {"uncordon": "cordon", "reopen": "close"}[reopen])()
    getattr(stand.scheduler, reopen)()
    stand.end(claim)
    await stand.settle()
    assert (stand.store.calls["exchange"], stand.store.calls["finish"]) == (1, 0)
    await stand.check_written(ids[0])


async def test_an_exchange_on_a_cordoned_node_writes_the_outcome(stand: Stand) -> None:
    ids, claim = await run_one(stand, 2)
    stand.store.cause("exchange", cordoning(stand))
    stand.end(claim)
    await stand.scheduler.step()
    await stand.check_written(ids[0])
    assert (stand.claims, stand.scheduler.is_idle("shared")) == ([], False), "it is asked for again later"


def cordoning(stand: Stand) -> Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    async def answer(call: Callable[[], Awaitable[Any]]) -> Any:
        verdicts, claims = await call()
        for claim in claims:
            await stand.store.finish([handed_back(claim)])
        claims.clear()
        claims.is_cordoned = True
        return verdicts, claims

    return answer


@pytest.mark.parametrize("error", [StoreUnavailable("away"), ValueError("a defect")])
async def test_an_exchange_that_raises_leaves_the_outcome_to_the_completer(stand: Stand, error: Exception) -> None:
    ids, claim = await run_one(stand, 2)

    async def fail(_call: Callable[[], Awaitable[Any]]) -> Any:
        raise error

    stand.store.cause("exchange", fail)
    stand.end(claim)
    with pytest.raises(type(error)):
        await stand.scheduler.step()
    assert stand.completer.unwritten == {ids[0]}
    assert stand.is_awake
    assert not stand.scheduler.is_claiming
    await stand.settle()
    await stand.check_written(ids[0])
    assert [claim.id for claim in stand.claims] == ids[1:]


async def test_outcomes_that_the_store_rejects_do_not_hold_claims_up(stand: Stand) -> None:
    ids, claim = await run_one(stand, 2)

    async def reject(_call: Callable[[], Awaitable[Any]]) -> Any:
        raise DataRejected("not this value")

    stand.store.cause("exchange", reject)
    stand.end(claim)
    await stand.settle()
    await stand.check_written(ids[0])
    assert [claim.id for claim in stand.claims] == ids[1:]


async def test_an_exchange_that_is_cancelled_leaves_the_outcome_to_the_completer(stand: Stand) -> None:
    ids, claim = await run_one(stand, 2)
    gate = Gate()

    async def hang(_call: Callable[[], Awaitable[Any]]) -> Any:
        await gate.hold()

    stand.store.cause("exchange", hang)
    stand.end(claim)
    stepping = asyncio.ensure_future(stand.scheduler.step())
    await gate.until_reached()
    assert stand.completer.unwritten == {ids[0]}
    assert not stand.completer._is_flushed.is_set()
    stepping.cancel()
    await asyncio.wait([stepping])
    stand.scheduler.close()
    await stand.settle()
    await stand.check_written(ids[0])


async def test_an_outcome_that_comes_during_an_exchange_goes_with_the_next(stand: Stand) -> None:
    await stand.store.set_limit("license", 2)
    ids = await stand.add(4)
    await stand.settle()
    first, second = stand.claims
    gate = Gate()

    async def wait(call: Callable[[], Awaitable[Any]]) -> Any:
        await gate.hold()
        return await call()

    stand.store.cause("exchange", wait)
    stand.end(first)
    stepping = asyncio.ensure_future(stand.scheduler.step())
    await gate.until_reached()
    stand.end(second)
    gate.open()
    await stepping
    assert stand.completer.unwritten == {second.id}
    await stand.settle()
    await stand.check_written(*ids[:2])
    assert [claim.id for claim in stand.claims] == ids[2:]


# ---------------------------------------------------------------- contested limits


def contest(stand: Stand) -> None:
    stand.permits.update_contested([another_node(theirs=LICENSED)])
    stand.scheduler.choose_exchanged_kinds()


async def test_a_contested_permit_is_free_for_one_round_before_it_is_claimed_again(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "DEFERRAL_SECONDS", PATIENCE_SECONDS)
    ids, claim = await run_one(stand, 3)
    contest(stand)
    stand.end(claim)
    await stand.settle()
    await stand.check_written(ids[0])
    assert (stand.claims, stand.store.calls["exchange"], stand.store.calls["finish"]) == ([], 0, 1)
    (free,) = await stand.add(1, "free")
    await stand.settle()
    assert [claim.id for claim in stand.claims] == [free], "kinds without permits are not held back"
    stand.scheduler._end_deferral()
    await stand.settle()
    assert [claim.id for claim in stand.claims] == [free, ids[1]]


async def test_a_node_that_steps_back_for_nothing_backs_off(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedulers, "DEFERRAL_SECONDS", PATIENCE_SECONDS)
    contest(stand)
    await stand.add(100)
    await stand.settle()
    rounds: list[int] = []
    skipped = 0
    while len(rounds) < 7:
        stand.end(stand.claims[0])
        await stand.settle()
        if stand.claims:
            skipped += 1
            continue
        rounds.append(skipped)
        skipped = 0
        stand.scheduler._end_deferral()
        await stand.settle()
    assert rounds == [0, 1, 3, 7, 15, 15, 15]


async def test_a_node_whose_permit_was_taken_steps_back_each_time(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedulers, "DEFERRAL_SECONDS", PATIENCE_SECONDS)
    contest(stand)
    await stand.add(100)
    await stand.settle()
    for _ in range(5):
        stand.end(stand.claims[0])
        await stand.settle()
        assert stand.claims == [], "it has stepped back"
        await stand.store.set_limit("license", 0)  # as if the other node had taken the permit
        stand.scheduler._end_deferral()
        await stand.settle()
        assert stand.claims == []
        await stand.store.set_limit("license", 1)
        stand.scheduler.wake(["shared"])  # the other node has freed it
        await stand.settle()


async def test_a_permit_that_is_contested_no_longer_is_exchanged_again(stand: Stand) -> None:
    ids, claim = await run_one(stand, 2)
    contest(stand)
    stand.permits.update_contested([])
    stand.scheduler.choose_exchanged_kinds()
    stand.end(claim)
    await stand.settle()
    assert stand.store.calls["exchange"] == 1
    await stand.check_written(ids[0])


async def test_an_outcome_that_waits_when_the_limit_becomes_contested_is_written(stand: Stand) -> None:
    ids, claim = await run_one(stand)
    stand.end(claim)
    contest(stand)
    await stand.settle()
    await stand.check_written(ids[0])
    assert (stand.store.calls["exchange"], stand.store.calls["finish"]) == (0, 1)


# ---------------------------------------------------------------- a real node

TASKS: Final = 20
Body = Callable[[int], Coroutine[Any, Any, int]]
Register = Callable[[Engine, Body], Any]


class Turns:
    """A task function that notes who is inside."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.inside = self.most = 0
        self.entered = asyncio.Event()
        self.gate = asyncio.Event()

    async def dropped_task(self, node: Node) -> None:
        """Let the first one end when the node is at rest."""
        await self.entered.wait()
        await until(lambda: node.scheduler.is_idle(None))
        self.gate.set()

    async def body(self, number: int) -> int:
        self.began.append(number)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        await self.gate.wait()
        await asyncio.sleep(0)
        self.inside -= 1
        return number


def by_name(engine: Engine, body: Body) -> Any:
    engine.limit("license", 1)
    return engine.task(name="shared", limits=["license"])(body)


def by_key(engine: Engine, body: Body) -> Any:
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


def by_key_on_server(engine: Engine, body: Body) -> Any:
    pool = engine.provider("pool", servers=["https://one.example.com"], capacity=1)
    return pool.task(name="shared", limit_by=lambda number: "one", limit=1)(body)


WAYS: Final = pytest.mark.parametrize(
    "register",
    [by_name, by_key, on_server, beside_another_kind, below_a_prefix, beside_another_provider, by_key_on_server],
)


def watch(store: TroubledStore) -> list[Claim]:
    """The tasks that start with the end of another one."""
    found: list[Claim] = []

    async def note(call: Callable[[], Awaitable[Any]]) -> Any:
        verdicts, claims = await call()
        found.extend(claims)
        return verdicts, claims

    store.cause("exchange", note)
    return found


@WAYS
async def test_tasks_start_with_the_end_of_the_one_before(url: str, register: Register) -> None:
    engine, turns = Engine(url), Turns()
    made = make_troubled(engine)
    task = register(engine, turns.body)
    async with engine:
        found = watch(made[-1])
        handles = await task.enqueue_many((number,) for number in range(TASKS))
        async with engine.worker() as node:
            await turns.dropped_task(node)
            assert [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles] == list(range(TASKS))
    assert (turns.began, turns.most) == (list(range(TASKS)), 1)
    assert len(found) == TASKS - 1, "all but the first"


async def test_kinds_that_share_a_permit_take_it_in_their_common_order(url: str) -> None:
    engine, turns = Engine(url), Turns()
    made = make_troubled(engine)
    engine.limit("license", 1)
    kinds = [engine.task(name=name, limits=["license"])(turns.body) for name in ("one", "two")]
    async with engine:
        found = watch(made[-1])
        handles = [await kinds[number % 3 % 2].enqueue(number) for number in range(TASKS)]
        handles += [await kinds[1].with_options(priority=1).enqueue(TASKS)]
        async with engine.worker() as node:
            await turns.dropped_task(node)
            for handle in handles:
                await handle.result(timeout=PATIENCE_SECONDS)
    assert (turns.began, turns.most) == ([TASKS, *range(TASKS)], 1)
    assert len(found) == TASKS


async def test_a_better_task_of_any_kind_has_the_slot(url: str) -> None:
    engine, turns = Engine(url, concurrency=1), Turns()
    shared = by_name(engine, turns.body)

    @engine.task(priority=1)
    async def better(number: int) -> int:
        return await turns.body(number)

    async with engine:
        handles = await shared.enqueue_many((number,) for number in range(3))
        async with engine.worker():
            await turns.entered.wait()
            handles += await better.enqueue_many((number,) for number in range(10, 13))
            turns.gate.set()
            for handle in handles:
                await handle.result(timeout=PATIENCE_SECONDS)
    assert turns.began == [0, 10, 11, 12, 1, 2]


@WAYS
async def test_tasks_that_started_unheard_run_all_the_same(url: str, register: Register) -> None:
    """The store has made the exchange, and its answer is lost: the node does not know of the task that runs now."""
    engine, turns = Engine(url), Turns()
    made = make_troubled(engine)
    task = register(engine, turns.body)
    lost: list[Claim] = []

    async def lose_the_answer(call: Callable[[], Awaitable[Any]]) -> Any:
        verdicts, claims = await call()
        if lost or not claims:
            return verdicts, claims
        lost.extend(claims)
        raise StoreUnavailable("the answer is lost")

    async with engine:
        made[-1].cause("exchange", lose_the_answer)
        handles = await task.enqueue_many((number,) for number in range(6))
        async with engine.worker() as node:
            await turns.dropped_task(node)
            assert [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles] == list(range(6))
        record = await engine.get(lost[0].id)
    assert (turns.began, turns.most) == (list(range(6)), 1)
    assert record is not None
    assert (record.attempts, record.claim_no) == (1, 2), "it was given back at no cost, and claimed again"


@WAYS
async def test_outcomes_are_written_though_no_exchange_gets_through(url: str, register: Register) -> None:
    engine, turns = Engine(url), Turns()
    made = make_troubled(engine)
    task = register(engine, turns.body)
    async with engine:
        made[-1].cause("exchange", is_away)
        handles = await task.enqueue_many((number,) for number in range(3))
        async with engine.worker() as node:
            await turns.dropped_task(node)
            assert [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles] == list(range(3))
            await asyncio.wait_for(node.completer.flushed(), PATIENCE_SECONDS)
    assert (turns.began, turns.most) == (list(range(3)), 1)


@WAYS
async def test_the_last_outcome_is_written_when_the_node_stops(url: str, register: Register) -> None:
    engine, turns = Engine(url), Turns()
    task = register(engine, turns.body)
    async with engine:
        handles = await task.enqueue_many((number,) for number in range(2))
        async with engine.worker():
            await turns.entered.wait()
            asyncio.get_running_loop().call_soon(turns.gate.set)
        assert (await handles[0].status()).state is State.SUCCEEDED
        assert (await handles[1].status()).state is State.READY
        assert turns.began == [0]


@WAYS
async def test_the_outcome_on_a_cordoned_node_is_written(url: str, register: Register) -> None:
    engine, turns = Engine(url), Turns()
    task = register(engine, turns.body)
    async with engine:
        handles = await task.enqueue_many((number,) for number in range(2))
        async with engine.worker() as node:
            await turns.entered.wait()
            await engine.cordon(node.id)
            await until(lambda: node.scheduler.is_cordoned)
            turns.gate.set()
            assert await handles[0].result(timeout=PATIENCE_SECONDS) == 0
            assert turns.began == [0]
            await engine.uncordon(node.id)
            assert await handles[1].result(timeout=PATIENCE_SECONDS) == 1


async def test_outcomes_that_wait_when_the_lease_is_lost_are_not_forgotten(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the lease tells the scheduler to stop, and touches nothing else."""
    engine, turns = Engine(sqlite_url), Turns()
    task = by_name(engine, turns.body)
    async with engine:
        handle = await task.enqueue(0)
        async with engine.worker() as node:
            await turns.dropped_task(node)
            assert await handle.result(timeout=PATIENCE_SECONDS) == 0
            threads: list[threading.Thread] = []
            choose = node.scheduler.choose_exchanged_kinds

            def note() -> None:
                threads.append(threading.current_thread())
                choose()

            monkeypatch.setattr(node.scheduler, "choose_exchanged_kinds", note)
            old = node.id
            await engine._store.unregister(old)
            node.membership.renew_soon()
            await until(lambda: node.id != old and node.scheduler.may_claim)
            assert await (await task.enqueue(1)).result(timeout=PATIENCE_SECONDS) == 1
    assert set(threads) == {threading.main_thread()}


# ---------------------------------------------------------------- many key queues

CUSTOMERS: Final = 8
ROUNDS: Final = 6


class Shop:
    """Task functions that end together, one of each customer."""

    def __init__(self) -> None:
        self.inside: Counter[int] = Counter()
        self.most = 0
        self._barrier = asyncio.Barrier(CUSTOMERS)

    async def serve(self, number: int) -> int:
        customer = number % CUSTOMERS
        self.inside[customer] += 1
        self.most = max(self.most, self.inside[customer])
        await self._barrier.wait()
        self.inside[customer] -= 1
        return number


@pytest.mark.parametrize("is_lost", [False, True])
async def test_the_next_of_each_key_queue_start_together(url: str, is_lost: bool) -> None:
    engine, shop = Engine(url), Shop()
    made = make_troubled(engine)
    task = engine.task(name="serve", limit_by=lambda number: str(number % CUSTOMERS), limit=1)(shop.serve)
    found: list[Claim] = []

    async def hear(call: Callable[[], Awaitable[Any]]) -> Any:
        verdicts, claims = await call()
        was_heard = bool(found) or not claims
        found.extend(claims)
        if is_lost and not was_heard:
            raise StoreUnavailable("the answer is lost")
        return verdicts, claims

    async with engine:
        made[-1].cause("exchange", hear)
        handles = await task.enqueue_many((number,) for number in range(CUSTOMERS * ROUNDS))
        async with engine.worker():
            results = [await handle.result(timeout=PATIENCE_SECONDS) for handle in handles]
    assert (results, shop.most) == (list(range(CUSTOMERS * ROUNDS)), 1)
    assert len(found) >= CUSTOMERS
