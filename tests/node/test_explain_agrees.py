"""`explain` says that a task can start on a node exactly when that node's next claim takes it."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, NamedTuple, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.cluster.support import IS_LONG_RUN
from tests.node import process_functions as process_bodies

from synergon import Command, Engine, Resources, State, Why
from synergon.model.claims import Claim, KindRequest
from synergon.model.node_status import encode_status
from synergon.model.nodes import NewNode
from synergon.model.outcomes import FencedOutcome, Succeeded
from synergon.model.process_identity import this_process
from synergon.model.requirements import UNIT, provider_bound, queue_bound
from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.deadlines import Timeouts
from synergon.node.capacity.reservation import Reservation
from synergon.node.claims.admission import Admission
from synergon.node.claims.ledger import Ledger
from synergon.node.claims.scheduler import Scheduler
from synergon.node.liveness.status import node_status
from synergon.node.logger import NodeLogger
from synergon.node.signals import Signals
from synergon.options.durations import microseconds
from synergon.providers.commands import ANY
from synergon.stores.rules.node_capacity import requirements_of
from synergon.task import AnyTask
from synergon.version import VERSION

COMMAND: Final = "pool.order"
SERVED: Final = ("served", "served_too", "served_elsewhere", COMMAND)
URGENT: Final = ("urgent", "also_urgent", "urgent_child")
CHILDREN: Final = ("child", "other_child", "urgent_child", "threaded")
SHARING: Final = ("few", "limited", "also_limited", "served", "served_too", "served_elsewhere", COMMAND)
KINDS: Final = (
    "plain",
    "few",
    "limited",
    "also_limited",
    "global_one",
    "costly",
    "end",
    *SERVED,
    *URGENT,
    *CHILDREN[:2],
    "threaded",
)
THEMES: Final = (
    KINDS,
    SERVED,
    (*SERVED, "plain"),
    (*URGENT[:2], "plain"),
    (*CHILDREN, "plain"),
    ("costly", "end", "plain"),
)
"""Of which kinds the tasks of a world are: rules for a few kinds show where there is little else."""
COSTLY: Final = ("costly", "end", "plain", "few", "limited", "served", "child")
QUEUES: Final = ("mail", "night")
LABELS: Final = ("east", "spot")
NOW: Final = 100.0


class NodePlan(NamedTuple):
    """A node to be."""

    concurrency: int
    processes: int
    cpu: int
    labels: frozenset[str]
    queues: frozenset[str] | None
    kinds: frozenset[str]
    is_cordoned: bool
    starts_first: int
    """How many tasks it has taken when the question comes."""
    keeps_room: bool = False
    """Whether it has reserved capacity for a task that does not fit, however young."""
    starts_later: int | None = None
    """How many it has taken after that, if it has claimed again."""
    ends: int = 0
    """How many of all these have ended since."""
    bounds: tuple[tuple[str, int], ...] = ()
    """How many tasks of a queue or of the provider it runs at once."""


class TaskPlan(NamedTuple):
    """A task to be."""

    kind: str
    queue: str
    priority: int
    cpu: int | None
    needs: frozenset[str]
    forbids: frozenset[str]
    is_process: bool | None = None
    """Where its call says that it runs."""


some_labels = st.frozensets(st.sampled_from(LABELS))
some_bounds = st.just(()) | st.dictionaries(
    st.sampled_from([queue_bound("mail"), queue_bound("night"), provider_bound("pool")]), st.integers(1, 2)
).map(lambda bounds: tuple(sorted(bounds.items())))
nodes = st.builds(
    NodePlan,
    concurrency=st.integers(1, 5),
    processes=st.integers(0, 2),
    cpu=st.integers(0, 3),
    labels=some_labels,
    queues=st.none() | st.frozensets(st.sampled_from(QUEUES), min_size=1),
    kinds=st.frozensets(st.sampled_from(KINDS), max_size=5).map(lambda lacking: frozenset(KINDS) - lacking),
    is_cordoned=st.integers(0, 4).map(lambda number: number == 0),
    starts_first=st.integers(0, 3),
    keeps_room=st.booleans(),
    starts_later=st.none() | st.integers(0, 2),
    ends=st.integers(0, 3),
    bounds=some_bounds,
)


def tasks_of(kinds: tuple[str, ...]) -> st.SearchStrategy[TaskPlan]:
    return st.builds(
        TaskPlan,
        kind=st.sampled_from(kinds),
        queue=st.sampled_from(QUEUES),
        priority=st.integers(0, 1),
        cpu=st.none() | st.integers(0, 3),
        needs=st.just(frozenset[str]()) | some_labels,
        forbids=st.just(frozenset[str]()) | some_labels,
        is_process=st.sampled_from([None, None, True, False]) if set(kinds) & set(CHILDREN) else st.none(),
    )


def register(engine: Engine, limit: int, capacity: int) -> Command[..., ..., Any, Any]:
    """All kinds; a node may know some of them only. The command is for the servers of a provider."""

    async def body() -> None: ...

    engine.limit("shared", limit)
    pool = engine.provider("pool", servers={"http://a": capacity, "http://b": min(capacity, 1)})
    engine.limit("http://a", 1)
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "few": {"max_running": 1, "limits": ["shared"]},
        "limited": {"limits": ["shared"]},
        "also_limited": {"limits": ["shared"], "cost": Resources(cpu=1)},
        "global_one": {"max_running_global": 1},
        "costly": {"cost": Resources(cpu=1), "timeout": 5},
        "urgent": {"urgent": True, "priority": 1},
        "also_urgent": {"urgent": True},
        "end": {"downstream_of": ["plain"], "cost": Resources(cpu=2)},
    }
    for name, said in options.items():
        engine.task(name=name, **said)(body)
    pool.task(name="served")(body)
    pool.task(name="served_too")(body)
    engine.provider("elsewhere", servers={"http://c": None}).task(name="served_elsewhere")(body)
    process_bodies.on(engine, process_bodies.process_id, name="child")
    process_bodies.on(engine, process_bodies.process_id, name="other_child")
    process_bodies.on(engine, process_bodies.process_id, name="urgent_child", urgent=True)
    process_bodies.on(engine, process_bodies.process_id, name="threaded", runs_in="thread")

    async def order() -> None: ...

    return pool.command(name="order")(order)


class StoppedLoop:
    """Its time stands still."""

    def time(self) -> float:
        return NOW


STOPPED: Final = cast("asyncio.AbstractEventLoop", StoppedLoop())


class Stand:
    """A node without a loop of its own: the real ledger and admission, and a row that says what they would say."""

    def __init__(self, engine: Engine, plan: NodePlan, number: int) -> None:
        self.engine = engine
        self.plan = plan
        self.id = f"node-{number}"
        self.kinds: dict[str, AnyTask] = {kind: engine.kinds[kind] for kind in sorted(plan.kinds)}
        bounds = {name: number * UNIT for name, number in plan.bounds}
        resources = Resources(cpu=plan.cpu, ram=0, gpu=0).amounts()
        self.ledger = Ledger(plan.concurrency, plan.processes, resources | bounds)
        self.running: dict[int, Attempt] = {}
        self._timeouts = Timeouts(1800, None, NodeLogger(logging.getLogger("synergon"), {}))
        self.reservation = Reservation(
            self.kinds, self.running, self._timeouts, STOPPED, reserve_seconds=3600, signals=Signals()
        )
        self.reservation.patience = 0
        self.admission = Admission(
            self.kinds,
            self.ledger,
            plan.queues,
            labels=plan.labels,
            reservation=self.reservation if plan.keeps_room else None,
        )
        self.scheduler = Scheduler(engine._store, self.admission, self.kinds, Signals())

    async def register(self) -> None:
        """With what it says of itself now."""
        plan = self.plan
        state = node_status(self.admission, self.ledger, self.running, self.scheduler, None)
        await self.engine._store.register(
            NewNode(
                id=self.id,
                name=self.id,
                process=this_process(),
                kinds=tuple(self.kinds),
                queues=None if plan.queues is None else tuple(sorted(plan.queues)),
                concurrency=plan.concurrency,
                lease=microseconds(24 * 3600),  # however long the machine stands still, nobody is dead
                version=VERSION,
                published=encode_status(state),
            )
        )

    async def claim(self, most: int | None = None) -> set[int]:
        """The next claim, for all kinds of which something is ready, and the ids that it took."""
        request = self.admission.request(self.id, await self._ready())
        if request is None:
            return set()
        if most is not None:
            request = replace(request, limit=most)
        claims = await self.engine._store.claim(request)
        self.admission.note(claims)
        kind_requests = {kind_request.kind: kind_request for kind_request in request.kinds}
        for claim in claims:
            self._start(claim, kind_requests[claim.kind])
        return {claim.id for claim in claims}

    async def live_on(self) -> None:
        """Perhaps reserve capacity for the first of those that do not fit, and take some more; end some."""
        if self.plan.starts_later is not None:
            await self.claim(0)
            await self.claim(self.plan.starts_later)
        for attempt in list(self.running.values())[: self.plan.ends]:
            await self._end(attempt)

    def _start(self, claim: Claim, kind_request: KindRequest) -> None:
        attempt = self.running[claim.id] = Attempt(claim, self.kinds[claim.kind])
        attempt.cost = requirements_of(kind_request, claim.requirements, claim.queue).cost
        attempt.timeout = self._timeouts.of_kind(attempt.task_type)
        self.ledger.take(claim.kind, **self._places_of(attempt))

    async def _end(self, attempt: Attempt) -> None:
        claim = attempt.claim
        del self.running[claim.id]
        self.ledger.release(claim.kind, **self._places_of(attempt))
        await self.engine._store.finish([FencedOutcome(id=claim.id, claim_no=claim.claim_no, outcome=Succeeded())])

    def _places_of(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "is_command": attempt.task_type.is_command,
            "cost": attempt.cost,
        }

    async def _ready(self) -> list[str]:
        """The kinds of which something is ready here."""
        return sorted(
            {
                kind
                for (queue, kind, state) in await self.engine._store.counts()
                if state is State.READY
                and (self.admission.serves(kind, queue) or (kind == COMMAND and COMMAND in self.kinds))
            }
        )


def call(engine: Engine, plan: TaskPlan) -> Any:
    options: dict[str, Any] = {"queue": plan.queue, "priority": plan.priority}
    if plan.cpu is not None:
        options["cost"] = Resources(cpu=plan.cpu)
    options["needs"], options["forbids"] = plan.needs, plan.forbids - plan.needs
    if plan.is_process is not None and plan.kind in CHILDREN:
        options["runs_in"] = "process" if plan.is_process else "thread"
    return engine.kinds[plan.kind].with_options(**options).call()


class World(NamedTuple):
    """Nodes, what they run, and what is ready."""

    nodes: list[NodePlan]
    before: list[TaskPlan]
    """Of these the nodes have started some."""
    after: list[TaskPlan]
    limit: int
    capacity: int
    paused: str | None
    asked: int
    """Which of the nodes claims next."""


def worlds_of(kinds: tuple[str, ...]) -> st.SearchStrategy[World]:
    return st.builds(
        World,
        nodes=st.lists(nodes, min_size=1, max_size=3),
        before=st.lists(tasks_of(kinds), max_size=6),
        after=st.lists(tasks_of(kinds), min_size=1, max_size=8),
        limit=st.integers(0, 3),
        capacity=st.integers(0, 2),
        paused=st.sampled_from([None, None, "night"]),
        asked=st.integers(0, 2),
    )


keepers = st.builds(
    NodePlan,
    concurrency=st.integers(2, 3),
    processes=st.integers(1, 2),
    cpu=st.just(3),
    labels=st.just(frozenset[str]()),
    queues=st.none(),
    kinds=st.just(frozenset(KINDS)),
    is_cordoned=st.just(False),
    starts_first=st.integers(1, 2),
    keeps_room=st.just(True),
    starts_later=st.integers(0, 2),
    ends=st.integers(0, 3),
    bounds=some_bounds,
)


def costly(cpu: st.SearchStrategy[int | None]) -> st.SearchStrategy[TaskPlan]:
    nothing = st.just(frozenset[str]())
    kinds, queue = st.sampled_from(COSTLY), st.sampled_from(QUEUES)
    return st.builds(TaskPlan, kinds, queue, priority=st.integers(0, 1), cpu=cpu, needs=nothing, forbids=nothing)


keeping_worlds = st.builds(
    World,
    nodes=st.lists(keepers, min_size=1, max_size=2),
    before=st.lists(costly(st.integers(1, 3)), min_size=3, max_size=5),
    after=st.lists(costly(st.none() | st.integers(0, 3)), min_size=1, max_size=6),
    limit=st.integers(1, 2),
    capacity=st.integers(1, 2),
    paused=st.sampled_from([None, None, None, "night"]),
    asked=st.integers(0, 1),
)
"""Where nodes are full of what costs something, and often reserve capacity for a task."""
strangers = st.builds(
    NodePlan,
    concurrency=st.integers(2, 5),
    processes=st.just(0),
    cpu=st.integers(1, 3),
    labels=some_labels,
    queues=st.none() | st.frozensets(st.sampled_from(QUEUES), min_size=1),
    kinds=st.frozensets(st.sampled_from(SHARING), min_size=1),
    is_cordoned=st.integers(0, 4).map(lambda number: number == 0),
    starts_first=st.integers(0, 2),
    keeps_room=st.booleans(),
    starts_later=st.none() | st.integers(0, 2),
    ends=st.integers(0, 3),
    bounds=some_bounds,
)
sharing_worlds = st.builds(
    World,
    nodes=st.lists(strangers, min_size=2, max_size=3),
    before=st.lists(tasks_of(SHARING), max_size=4),
    after=st.lists(tasks_of(SHARING), min_size=2, max_size=8),
    limit=st.integers(1, 3),
    capacity=st.integers(1, 2),
    paused=st.sampled_from([None, None, None, "night"]),
    asked=st.integers(0, 2),
)
"""Where nodes take the same places for different kinds, and leave them to each other."""
worlds = keeping_worlds | sharing_worlds | st.sampled_from(THEMES).flatmap(worlds_of)


async def agree(engine: Engine, stands: list[Stand], chosen: Stand, ids: list[int]) -> None:
    """What is said of the tasks, against what the next claim takes."""
    said = {task_id: await engine.explain(task_id) for task_id in ids}
    able = {task_id for task_id, found in said.items() if chosen.id in {node.id for node in found.can_start_on}}
    taken = await chosen.claim() & set(ids)
    assert able == taken, {task_id: str(said[task_id]) for task_id in able ^ taken}
    for explanation in said.values():
        is_named = any(f"can start on {stand.id}" in explanation.sentence for stand in stands)
        assert is_named == bool(explanation.can_start_on), explanation.sentence


@settings(max_examples=1000 if IS_LONG_RUN else 70, deadline=None)
@given(world=worlds)
def test_a_task_can_start_on_a_node_exactly_if_its_next_claim_takes_it(world: World) -> None:
    asyncio.run(in_world(world, agree))


@pytest.mark.parametrize(
    ("before", "ready", "processes"),
    [
        ([], ["served"] * 4 + ["served_elsewhere"] * 4, 0),
        (["served"] * 2, ["served"] * 2 + ["served_elsewhere"] * 2, 0),
        (["served_elsewhere"] * 3, ["served_elsewhere", "served"], 0),
        (["served_elsewhere"] * 2, ["served_too", "served", "served_elsewhere"], 0),
        (["served", "served_elsewhere", "plain"], ["served_elsewhere", "served"], 0),
        ([], ["urgent"] * 4 + ["also_urgent"] * 2 + ["plain"], 0),
        (["plain"] * 3, ["urgent", "also_urgent"], 0),
        ([], ["child"] * 2 + ["other_child"] * 2 + ["plain"], 2),
        ([], ["child", "urgent_child", "plain"], 2),
        ([], ["child", "other_child", "urgent", "plain"], 2),
        ([], ["served"] * 2 + [COMMAND] * 5, 0),
        (["plain"] * 4, ["plain"] + [COMMAND] * 2, 0),
    ],
)
def test_what_kinds_share_is_shared_in_the_answer_too(before: list[str], ready: list[str], processes: int) -> None:
    nothing = frozenset[str]()
    node = NodePlan(4, processes, 4, nothing, None, frozenset(KINDS), False, len(before))
    tasks = {kind: TaskPlan(kind, "mail", 0, None, nothing, nothing) for kind in KINDS}
    world = World(
        nodes=[node],
        before=[tasks[kind] for kind in before],
        after=[tasks[kind] for kind in ready],
        limit=1,
        capacity=2,
        paused=None,
        asked=0,
    )
    asyncio.run(in_world(world, agree))


def test_a_command_of_another_node_keeps_no_server_from_this_one() -> None:
    """There are two servers; whichever node claims first has them, and no node starves."""
    nothing = frozenset[str]()
    nodes = [NodePlan(4, 0, 4, nothing, None, frozenset({kind}), False, 0) for kind in ("served", COMMAND)]
    tasks = {kind: TaskPlan(kind, "mail", 1, None, nothing, nothing) for kind in SERVED}
    ready = [tasks["served"], tasks["served"], tasks[COMMAND]]
    world = World(nodes, before=[], after=ready, limit=1, capacity=1, paused=None, asked=0)

    async def check(engine: Engine, stands: list[Stand], chosen: Stand, ids: list[int]) -> None:
        said = [await engine.explain(task_id) for task_id in ids]
        assert [bool(explanation.can_start_on) for explanation in said] == [True, True, True]
        await agree(engine, stands, chosen, ids)

    asyncio.run(in_world(world, check))


def test_the_task_that_room_is_kept_for_goes_first_in_the_answer_too() -> None:
    """Whatever the priority of the others: there is one slot left when it fits."""
    nothing = frozenset[str]()
    node = NodePlan(2, 0, 3, nothing, None, frozenset(KINDS), False, 1, keeps_room=True, starts_later=1, ends=1)
    plain = TaskPlan("plain", "mail", 0, None, nothing, nothing)
    small, big = plain._replace(kind="end", cpu=1), plain._replace(kind="costly", cpu=3)
    world = World(
        nodes=[node],
        before=[small, big],
        after=[plain, plain._replace(priority=1), small._replace(priority=1)],
        limit=1,
        capacity=2,
        paused=None,
        asked=0,
    )

    async def check(engine: Engine, stands: list[Stand], chosen: Stand, ids: list[int]) -> None:
        assert chosen.reservation.reserved is not None
        assert [bool((await engine.explain(task_id)).can_start_on) for task_id in ids] == [True, False, False]
        await agree(engine, stands, chosen, ids)

    asyncio.run(in_world(world, check))


@pytest.mark.parametrize(
    ("before", "ready"),
    [
        ([1, 1], [3, 1]),
        ([1, 1], [1, 3, 1]),
        ([1, 1], [1, 1, 1, 3]),
        ([2], [2, 1]),
        ([2, 1], [2, 1]),
        ([2], [2, 3, 1]),
        ([1, 3], [1, 1]),  # it has reserved capacity for the bigger one by then
    ],
)
def test_what_is_said_of_a_claim_that_keeps_room(before: list[int], ready: list[int]) -> None:
    nothing = frozenset[str]()
    node = NodePlan(8, 0, 3, nothing, None, frozenset(KINDS), False, 9, keeps_room=True)
    tasks = {cpu: TaskPlan("plain", "mail", 0, cpu, nothing, nothing) for cpu in (1, 2, 3)}
    world = World(
        nodes=[node],
        before=[tasks[cpu] for cpu in before],
        after=[tasks[cpu] for cpu in ready],
        limit=1,
        capacity=1,
        paused=None,
        asked=0,
    )
    asyncio.run(in_world(world, agree))


@settings(max_examples=1000 if IS_LONG_RUN else 70, deadline=None)
@given(world=worlds, which=st.integers(0, 7))
def test_alone_it_is_taken_exactly_if_nothing_but_others_stood_in_its_way(world: World, which: int) -> None:
    async def check(engine: Engine, _: list[Stand], chosen: Stand, ids: list[int]) -> None:
        task_id = ids[which % len(ids)]
        said = await engine.explain(task_id)
        causes = [cause.why for node in said.nodes if node.id == chosen.id for cause in node.causes]
        is_known = said.kind in chosen.kinds
        others = {task.id for task in await engine.tasks(state=State.READY)} - {task_id}
        await engine._store.delete(sorted(others))
        is_taken = task_id in await chosen.claim()
        assert is_taken == (is_known and set(causes) <= {Why.BEHIND, Why.WILL_RESERVE}), said

    asyncio.run(in_world(world, check))


Check = Callable[[Engine, list[Stand], Stand, list[int]], Awaitable[None]]


async def in_world(world: World, check: Check) -> None:
    engine = Engine(f"memory://{uuid.uuid4().hex}")
    order = register(engine, world.limit, world.capacity)
    async with engine:
        stands = [Stand(engine, plan, number) for number, plan in enumerate(world.nodes)]
        await enqueue(engine, order, world.before)
        for stand in stands:
            await stand.register()
            await stand.claim(stand.plan.starts_first)
        half = len(world.after) // 2
        await enqueue(engine, order, world.after[:half])
        for stand in stands:
            await stand.live_on()
        await enqueue(engine, order, world.after[half:])
        await settle(engine, stands, world.paused)
        ids = sorted(task.id for task in await engine.tasks(state=State.READY, limit=100))
        await check(engine, stands, stands[world.asked % len(stands)], ids)


async def enqueue(engine: Engine, order: Command[..., ..., Any, Any], plans: Iterable[TaskPlan]) -> None:
    for plan in plans:
        if plan.kind == COMMAND:
            await order.enqueue(to="http://a" if plan.priority else ANY)
        else:
            await engine.enqueue([call(engine, plan)])


async def settle(engine: Engine, stands: list[Stand], paused: str | None) -> None:
    """What people have said, and what nodes say after it."""
    for stand in stands:
        await stand.register()
        if stand.plan.is_cordoned:
            await engine.cordon(stand.id)
    if paused is not None:
        await engine.pause(paused)
