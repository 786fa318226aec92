"""What the tests do to a store, in a word each. Nothing here knows which store it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from synergon.model.claims import Claim, ClaimRequest, Claims, KindRequest
from synergon.model.lifecycle import FINAL, WAITING_STATES, Reason, State
from synergon.model.limits import LimitRecord, NewBatch, NewLimit, NewProvider, NewServer
from synergon.model.nodes import NewNode, ProcessIdentity
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    ErrorRecord,
    Failed,
    FencedOutcome,
    HandedBack,
    Outcome,
    Retrying,
    ServerFault,
    Snoozed,
    Succeeded,
    Verdict,
)
from synergon.model.process_identity import BOOT_ID
from synergon.model.requirements import PROCESS, THREAD, UNIT, WHOLE_NODE, make_requirements
from synergon.model.task_records import QueueRecord, TaskQuery, TaskRecord
from synergon.model.tasks import NewTask
from synergon.stores.base import Store

MILLISECOND: Final = 1000
HOUR: Final = 3600 * 1_000_000
KIND: Final = "work"
PATIENCE_SECONDS: Final = 30.0
"""Far more than anything here takes; a wait that is longer has failed."""

ERROR: Final = ErrorRecord(attempt=1, type="ValueError", message="bad", traceback="Traceback ...")

OUTCOMES: Final[dict[str, Outcome]] = {
    "succeeded": Succeeded(result=b"42"),
    "failed": Failed(reason=Reason.EXHAUSTED, error=ERROR),
    "retrying": Retrying(delay=HOUR, error=ERROR),
    "retrying at once": Retrying(delay=0, error=ERROR),
    "snoozed": Snoozed(delay=HOUR),
    "cancelled": Cancelled(why="enough"),
    "handed back": HandedBack(),
    "crashed": Crashed(error=ERROR),
    "server failed": ServerFault(error=ERROR, otherwise=Failed(reason=Reason.ERROR, error=ERROR)),
}

STATES: Final = tuple(state for state in State if state is not State.WAITING)
"""The states a task can be brought into through the port."""


def new_node(node_id: str, lease: int = HOUR) -> NewNode:
    """A node of this very boot, so that no store doubts its lease."""
    process = ProcessIdentity(host="host", boot_id=BOOT_ID, pid_namespace="pid:[1]", pid=4711, started=1.5)
    return NewNode(
        id=node_id,
        name=f"name of {node_id}",
        process=process,
        kinds=(KIND,),
        queues=None,
        concurrency=8,
        lease=lease,
        version="1.2.3",
        address="http://10.0.0.1:8080",
    )


EMPTY_NODE: Final = {PROCESS: 1000 * UNIT, THREAD: 1000 * UNIT, WHOLE_NODE: UNIT}
"""What is free on a node that runs nothing: suspects can run there, too."""


class Worker:
    """A node that claims and settles by hand."""

    def __init__(self, store: Store, node_id: str) -> None:
        self.store = store
        self.node_id = node_id

    @classmethod
    async def start(cls, store: Store, node_id: str = "node-1", lease: int = HOUR) -> Worker:
        """Register the node."""
        await store.register(new_node(node_id, lease))
        return cls(store, node_id)

    async def claim(
        self, *kinds: str, limit: int = 1000, kind_request: int = 1000, queues: Iterable[str] | None = None
    ) -> Claims:
        """Take what there is of these kinds."""
        kind_requests = tuple(KindRequest(kind=kind, count=kind_request) for kind in kinds or (KIND,))
        wanted = None if queues is None else frozenset(queues)
        return await self.store.claim(
            ClaimRequest(
                node_id=self.node_id,
                kinds=kind_requests,
                limit=limit,
                queues=wanted,
                totals=EMPTY_NODE,
                free=EMPTY_NODE,
            )
        )

    async def claim_kinds(self, *kind_requests: KindRequest, limit: int = 1000, **more: Any) -> Claims:
        """Claim tasks for these kind requests. `more` has further fields of the claim request."""
        return await self.store.claim(ClaimRequest(node_id=self.node_id, kinds=kind_requests, limit=limit, **more))

    async def claim_ids(self, *kinds: str, **options: Any) -> list[int]:
        """The ids of what it could take."""
        return [claim.id for claim in await self.claim(*kinds, **options)]

    async def claim_one(self) -> Claim:
        """Take the one task that there is."""
        (claim,) = await self.claim()
        return claim

    async def finish(self, claim: Claim, outcome: Outcome) -> Verdict:
        """Settle one attempt."""
        (verdict,) = await self.store.finish([settlement_of(claim, outcome)])
        return verdict

    async def run(self, outcome: Outcome) -> Verdict:
        """Take the one task that there is and settle it."""
        return await self.finish(await self.claim_one(), outcome)


def settlement_of(claim: Claim, outcome: Outcome, **more: Any) -> FencedOutcome:
    """The outcome, addressed by the claim."""
    return FencedOutcome(
        id=claim.id,
        claim_no=claim.claim_no,
        outcome=outcome,
        limit_key=claim.limit_key,
        group_id=claim.group_id,
        **{"kind": claim.kind, **more},
    )


async def declare_limit(store: Store, name: str, value: int | None) -> None:
    """As code would."""
    await store.declare([NewLimit(name=name, value=value)], [])


def pool(**capacities: int | None) -> tuple[NewServer, ...]:
    """Servers by their address."""
    return tuple(NewServer(address=address, capacity=capacity) for address, capacity in capacities.items())


async def declare_pool(store: Store, **capacities: int | None) -> None:
    """A provider `gpu` with these servers."""
    await store.declare([], [NewProvider(name="gpu", servers=pool(**capacities))])


def amounts(**numbers: float) -> dict[str, int]:
    """So much of each resource, as stores count it."""
    return {name: round(number * UNIT) for name, number in numbers.items()}


def demands(needs: str = "", forbids: str = "", **numbers: float) -> str:
    """The text of requirements: labels with spaces between them, and amounts."""
    return make_requirements(amounts(**numbers), frozenset(needs.split()), frozenset(forbids.split())).text


async def states(store: Store, ids: Iterable[int]) -> list[State | None]:
    """What each of them does."""
    return [None if record is None else record.state for record in await store.get(list(ids))]


async def add(store: Store, **fields: Any) -> int:
    """Insert one task; its id."""
    (insertion,) = await store.insert([NewTask(**{"kind": KIND, **fields})])
    return insertion.id


async def add_many(store: Store, number: int, **fields: Any) -> list[int]:
    """Insert equal tasks; their ids."""
    return [insertion.id for insertion in await store.insert([NewTask(**{"kind": KIND, **fields})] * number)]


async def add_in_state(store: Store, state: State, **fields: Any) -> int:
    """Insert a task and bring it into `state`, with the help of a node of its own kind of errand."""
    task_id = await add(store, **{"delay": HOUR if state is State.SCHEDULED else None, **fields})
    if state is State.CANCELLED:
        await store.cancel([task_id])
    elif state not in (State.SCHEDULED, State.READY):
        await _run_to(store, task_id, state)
    assert (await read(store, task_id)).state is state
    return task_id


async def _run_to(store: Store, task_id: int, state: State) -> None:
    record = await read(store, task_id)
    helper = Worker(store, f"helper-{task_id}")
    await store.register(new_node(helper.node_id))
    claims = {claim.id: claim for claim in await helper.claim(record.kind, queues=[record.queue])}
    outcomes = {State.SUCCEEDED: OUTCOMES["succeeded"], State.FAILED: OUTCOMES["failed"]}
    for claim in claims.values():
        if claim.id != task_id:
            await helper.finish(claim, HandedBack())
    if state is not State.RUNNING:
        await helper.finish(claims[task_id], outcomes[state])
        await store.unregister(helper.node_id)


async def read(store: Store, task_id: int) -> TaskRecord:
    """The task, which must exist."""
    (record,) = await store.get([task_id])
    assert record is not None, f"task {task_id} is not there"
    return record


async def state_of(store: Store, task_id: int) -> State | None:
    """The state, or None where there is no such task."""
    (record,) = await store.get([task_id])
    return None if record is None else record.state


async def pages(store: Store, query: TaskQuery) -> AsyncIterator[TaskRecord]:
    """All tasks that match, page by page."""
    after = query.after
    while True:
        page = await store.list_tasks(msgspec.structs.replace(query, after=after))
        for record in page.tasks:
            yield record
        if page.next is None:
            return
        after = page.next


async def listed(store: Store, **filters: Any) -> list[int]:
    """The ids of all tasks that match, as listed."""
    return [record.id async for record in pages(store, TaskQuery(**filters))]


class Contents(NamedTuple):
    """What one gets by looking at every task, and at the queues."""

    records: list[TaskRecord]
    queues: list[QueueRecord]

    @classmethod
    async def of(cls, store: Store) -> Contents:
        return cls([record async for record in pages(store, TaskQuery(limit=1000))], await store.queues())


async def check_contents(store: Store) -> None:
    """The numbers are exact, the lines are in order, and every tenant has its turns."""
    contents = await Contents.of(store)
    _compare_counts(contents, await store.counts(is_exact=True))
    _compare_lines(contents, await store.limits())
    _check_turns(contents)
    await _check_dependencies(store, contents)


async def _check_dependencies(store: Store, contents: Contents) -> None:
    """A task waits for dependencies if one of them has not ended, and for no other reason."""
    states = {record.id: record.state for record in contents.records}
    ids = [record.id for record in contents.records if record.has_dependencies and record.state in WAITING_STATES]
    found = dict(zip(ids, await store.dependencies(ids), strict=True)) if ids else {}
    for record in contents.records:
        if record.state is State.SCHEDULED and record.is_dependent:
            continue  # the next wake settles it
        is_open = any(states.get(need.task_id) not in (None, *FINAL) for need in found.get(record.id, ()))
        assert record.is_dependent == is_open, f"task {record.id} is {record.state}, dependent: {record.is_dependent}"


async def check_counts(store: Store) -> None:
    """The numbers are those that one gets by looking at every task."""
    _compare_counts(await Contents.of(store), await store.counts(is_exact=True))


async def check_lines(store: Store) -> None:
    """Nobody waits in a line that has a place for them, and no line has more in it than it may."""
    _compare_lines(await Contents.of(store), await store.limits())


def _compare_counts(contents: Contents, counts: Mapping[tuple[str, str, State], int]) -> None:
    records = contents.records
    assert counts == dict(Counter((record.queue, record.kind, record.state) for record in records))
    for queue in contents.queues:
        assert queue.counts == dict(Counter(record.state for record in records if record.queue == queue.name))


def _compare_lines(contents: Contents, found: Sequence[LimitRecord]) -> None:
    limits = {limit.name: limit for limit in found}
    paused = {queue.name for queue in contents.queues if queue.is_paused}
    lines: dict[tuple[str, str], list[TaskRecord]] = {}
    for record in contents.records:
        if record.limit_key is not None and not record.is_dependent and record.state not in FINAL:
            lines.setdefault((record.kind, record.limit_key), []).append(record)
    for (kind, _), members in lines.items():
        _check_line(limits.get(f"key:{kind}"), members, paused)
    for name, limit in limits.items():
        if name.startswith("key:"):
            states = Counter(
                one.state for (kind, _), members in lines.items() if f"key:{kind}" == name for one in members
            )
            assert (limit.in_use, limit.waiting) == (states[State.RUNNING], states[State.WAITING])


def _check_turns(contents: Contents) -> None:
    for record in contents.records:
        if record.state is State.READY:
            assert (record.fair_tag > 0) == (record.fair_key is not None), f"task {record.id} has the wrong turn"


def _check_line(limit: LimitRecord | None, members: list[TaskRecord], paused: set[str]) -> None:
    def position(record: TaskRecord) -> tuple[int, int]:
        return -record.priority, record.id

    by_state: dict[State, list[TaskRecord]] = {state: [] for state in State}
    for record in members:
        by_state[record.state].append(record)
    ready, waiting, running = by_state[State.READY], by_state[State.WAITING], len(by_state[State.RUNNING])
    if limit is not None and limit.batch is not None:
        _check_batch(limit.batch, ready, [record for record in waiting if record.queue not in paused])
        return
    if limit is None or (limit.value is None and limit.rate is None):
        assert not waiting, "a line without end keeps somebody waiting"
        return
    in_order = [record for record in waiting if record.queue not in paused]
    kind_request = len(members) if limit.value is None else max(limit.value - running, 0)
    assert len(ready) <= kind_request, "more are ready than there are places"
    assert not any(record.queue in paused for record in ready), "a paused queue takes places from others"
    if in_order and ready:
        assert max(map(position, ready)) < min(map(position, in_order)), "somebody is ready before his turn"
    if in_order and limit.rate is None:
        assert len(ready) == kind_request, "somebody waits although there is a place"
    if in_order and limit.rate is not None and kind_request and not ready:
        assert by_state[State.SCHEDULED], "the line has nobody who would ever move on"


def _check_batch(batch: NewBatch, ready: list[TaskRecord], waiting: list[TaskRecord]) -> None:
    assert len(ready) <= 1, "a batch has two leaders"
    assert ready or len(waiting) < batch.size, "a complete batch has no leader"


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Return as soon as it is so."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await is_so():  # noqa: ASYNC110  a database has no event to wait for
            await asyncio.sleep(0.001)


async def pass_time(store: Store, microseconds: int) -> None:
    """Return when the store's clock is this much further."""
    moment = await store.now() + microseconds

    async def is_past() -> bool:
        return await store.now() >= moment

    await until(is_past)


async def pass_lease(store: Store, node_id: str) -> None:
    """Return when the store says that the node's lease is over."""

    async def is_over() -> bool:
        return any(node.id == node_id and node.lease_remaining < 0 for node in await store.nodes())

    await until(is_over)
