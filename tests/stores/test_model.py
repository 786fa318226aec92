"""Every store beside the model: random operations, legal and illegal, and the same answers and the same state.

Long, because every call of the port is a rule of the one machine.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from tests.stores.actions import amounts, check_lines, new_node
from tests.stores.conftest import make_folder, make_store
from tests.stores.model import LATER, Model, ModelTask
from tests.stores.model_claim import looked_at
from tests.stores.strategies import (
    details,
    kinds,
    limit_names,
    limit_values,
    limits,
    machines,
    new_tasks,
    notes,
    outcomes,
    picks,
    priorities,
    queues,
    requests,
    some_picks,
)

from synergon.errors import KeyConflict, LeaseLost
from synergon.model.claims import CandidateQuery, Claim, ClaimRequest, KindRequest
from synergon.model.groups import NewGroup
from synergon.model.lifecycle import FINAL, State
from synergon.model.limits import LimitRecord, NewLimit
from synergon.model.operator_actions import NewAction, Verb
from synergon.model.outcomes import FencedOutcome, Outcome, Progress, Refused, Report, Succeeded
from synergon.model.requirements import PROCESS, UNIT, WHOLE_NODE
from synergon.model.task_records import QueueRecord, TaskQuery, TaskRecord
from synergon.model.tasks import Cutoffs, Moved, NewTask, Reprioritizing, Rescheduling
from synergon.stores.rules.node_capacity import requirements_of

Answer = TypeVar("Answer")

Pick = tuple[bool, int]
Fence = tuple[int, int]

UNKNOWN_ID = 4711


class StoreMachine(RuleBasedStateMachine):
    """Does the same to a store and to the model."""

    store_name: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.folder = make_folder()
        self.runner = asyncio.Runner()
        self.store = make_store(self.store_name, self.folder.name)
        self.model = Model()
        self.ids: list[int] = [UNKNOWN_ID]
        self.node_ids: list[str] = ["stranger"]
        self.claims: list[Fence] = [(UNKNOWN_ID, 1)]
        self.settled: dict[Fence, FencedOutcome] = {}
        self.keys: dict[Fence, str | None] = {}
        """The line of each claim, as the store told it."""
        self.requirements: dict[Fence, str] = {}
        """What each claim said of them."""
        self.reserved: dict[str, int | None] = {}
        """What each node has reserved capacity for, as it was told."""
        self.run(self.store.open())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.runner.close()
        self.folder.cleanup()

    def run(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(call)

    def pick_ids(self, some: Sequence[Pick]) -> list[int]:
        """Different tasks in any state, or that are gone, or never were."""
        return list(dict.fromkeys(_pick(pick, list(self.model.tasks), self.ids) for pick in some))

    def pick_node(self, pick: Pick) -> str:
        """A node that is registered, or dead, or never was."""
        return _pick(pick, sorted(self.model.nodes), self.node_ids)

    def pick_claim(self, pick: Pick) -> Fence:
        """A claim that holds, or any that was ever made, or that never was."""
        return _pick(pick, [fence for fence in self.claims if self.model.owned(*fence)], self.claims)

    @initialize(tasks=st.lists(new_tasks, min_size=3, max_size=8))
    def start_with_nodes_and_tasks(self, tasks: list[NewTask]) -> None:
        self.register()
        self.register()
        for task in tasks:
            self.insert([task])

    # ------------------------------------------------------------ limits

    @rule(name=limit_names, value=limit_values, declares=st.booleans())
    def limit(self, name: str, value: int | None, declares: bool) -> None:
        if declares and name not in self.model.limits:
            self.run(self.store.declare([NewLimit(name=name, value=value)], []))
            self.model.limits[name] = value
        else:
            assert self.run(self.store.set_limit(name, value)) == self.model.set_limit(name, value)
        self.model.balance()

    # ------------------------------------------------------------ tasks come in

    @rule(tasks=st.lists(new_tasks, min_size=1, max_size=6))
    def insert(self, tasks: list[NewTask]) -> None:
        try:
            answers = self.run(self.store.insert(tasks))
        except KeyConflict as conflict:
            self.check_conflict(tasks, conflict)
            return
        new_ids = [answer.id for answer in answers if answer.created]
        expected = self.model.insert(tasks, iter(new_ids))
        assert [(answer.id, answer.created) for answer in answers] == [entry[:2] for entry in expected]
        self.model.balance()
        if len(tasks) == 1:  # what an earlier entry of the list is told about its state may be overtaken by a later
            assert answers[0].state is (expected[0][2] and self.model.tasks[answers[0].id].state)
        self.ids += new_ids

    def check_conflict(self, tasks: list[NewTask], conflict: KeyConflict) -> None:
        with pytest.raises(KeyConflict) as expected:
            self.model.insert(tasks, iter(()))
        assert conflict.task_id == expected.value.task_id

    @rule(tasks=st.lists(new_tasks, max_size=3))
    def open_group(self, tasks: list[NewTask]) -> None:
        try:
            group = self.run(self.store.open_group(NewGroup(name="group", tasks=tuple(tasks))))
        except KeyConflict as conflict:
            self.check_conflict(tasks, conflict)
            return
        new_ids = [answer.id for answer in group.insertions if answer.created]
        expected = self.model.insert(tasks, iter(new_ids))
        assert [(answer.id, answer.created) for answer in group.insertions] == [entry[:2] for entry in expected]
        self.ids += new_ids
        for task_id in new_ids:
            self.model.tasks[task_id].group_id = group.id
        self.model.groups[group.id] = None
        self.model.balance()

    @precondition(lambda self: self.model.groups)
    @rule(index=st.integers(0, 5))
    def cancel_group(self, index: int) -> None:
        group_id = list(self.model.groups)[index % len(self.model.groups)]
        live = [task.id for task in self.model.tasks.values() if task.group_id == group_id and task.state not in FINAL]
        moved = sorted(self.run(self.store.cancel_group(group_id)), key=lambda move: move.id)
        self.check_moves(sorted(live), moved, [self.model.cancel(task_id, None) for task_id in sorted(live)])

    # ------------------------------------------------------------ tasks run

    @precondition(lambda self: self.model.tasks)
    @rule(
        pick=picks,
        request=requests,
        only=st.one_of(st.none(), st.none(), some_picks),
        remembers=st.sampled_from([True, True, False]),
    )
    def claim(self, pick: Pick, request: ClaimRequest, only: list[Pick] | None, remembers: bool) -> None:
        node_id = self.pick_node(pick)
        reserved_task = self.reserved.get(node_id) if remembers else None
        kind_requests = request.kinds
        if only is not None:  # the node has looked at the tasks of one kind
            kind_requests = (replace(kind_requests[0], only=tuple(self.pick_ids(only))), *kind_requests[1:])
        held = request.held if reserved_task is None else self.requirements_for(reserved_task, request)
        self.claim_both(replace(request, node_id=node_id, kinds=kind_requests, reserved_task=reserved_task, held=held))

    def requirements_for(self, reserved_task: int, request: ClaimRequest) -> dict[str, int]:
        """No node holds more than the task could use that it holds it for."""
        task = self.model.tasks.get(reserved_task)
        kind_request = next(
            (kind_request for kind_request in request.kinds if task and kind_request.kind == task.task.kind), None
        )
        cost = requirements_of(kind_request, task.requirements).cost if kind_request and task else {}
        return {name: min(amount, cost.get(name, 0)) for name, amount in request.held.items()}

    @precondition(lambda self: self.model.tasks)
    @rule(
        pick=picks,
        drawn=st.lists(outcomes, max_size=6),
        cancels=st.sampled_from([False, False, True]),
        cpu=st.sampled_from([0, 100]),
    )
    def work(self, pick: Pick, drawn: list[Outcome], cancels: bool, cpu: int) -> None:
        """Claim whatever there is and settle some of it; somebody may want the first cancelled."""
        kind_requests = (KindRequest(kind="a", count=100), KindRequest(kind="b", count=100))
        first = len(self.claims)
        state = amounts(cpu=cpu, gpu=cpu) | {PROCESS: cpu * UNIT, WHOLE_NODE: UNIT}
        self.claim_both(
            ClaimRequest(node_id=self.pick_node(pick), kinds=kind_requests, limit=100, totals=state, free=state)
        )
        if cancels:
            self.cancel([task_id for task_id, _ in self.claims[first : first + 1]], why=None)
        for (task_id, claim_no), outcome in zip(self.claims[first:], drawn, strict=False):
            self.finish_both([self.fenced((task_id, claim_no), outcome)])

    def fenced(self, fence: Fence, outcome: Outcome, progress: Progress | None = None) -> FencedOutcome:
        if isinstance(outcome, Refused):
            outcome = replace(outcome, requirements=self.requirements.get(fence, ""))
        return FencedOutcome(
            id=fence[0],
            claim_no=fence[1],
            outcome=outcome,
            progress=progress,
            limit_key=self.keys.get(fence),
        )

    def claim_both(self, request: ClaimRequest) -> None:
        try:
            expected = self.model.claim(request)
        except LeaseLost:
            expected = None
        try:
            claims = self.run(self.store.claim(request))
        except LeaseLost:
            assert expected is None
            return
        assert expected is not None
        assert [(claim.id, claim.claim_no, claim.attempts) for claim in claims] == [
            (task.id, task.claim_no, task.attempts) for task in expected.taken
        ]
        assert (claims.reserved and claims.reserved.id, claims.is_cordoned) == (expected.reserved, expected.is_cordoned)
        self.reserved[request.node_id] = expected.reserved
        for claim in claims:
            self.check_claim(claim)
            self.claims.append((claim.id, claim.claim_no))
            self.keys[claim.id, claim.claim_no] = claim.limit_key
            self.requirements[claim.id, claim.claim_no] = claim.requirements

    def check_claim(self, claim: Claim) -> None:
        known = self.model.tasks[claim.id]
        task = known.task
        assert (claim.kind, claim.queue, claim.payload, claim.requirements) == (
            task.kind,
            task.queue,
            task.payload,
            known.requirements,
        )
        assert claim.max_attempts == task.max_attempts
        assert (claim.limit_key, claim.protected_for > 0) == (known.limit_key, known.is_spared)

    @precondition(lambda self: self.model.tasks)
    @rule(kind=kinds, more=details, machine=machines, some=some_picks, limit=limits)
    def look(self, kind: str, more: dict[str, Any], machine: dict[str, Any], some: list[Pick], limit: int) -> None:
        """What a node sees, from the beginning and behind a task that it has seen; and what goes before tasks."""
        (first, *others) = self.pick_ids(some)
        cursor = self.model.tasks.get(first)
        after = None if cursor is None else (cursor.priority, 0, cursor.id)
        for behind in (None, after):
            kind_request = KindRequest(kind=kind, count=1, **more)
            look = CandidateQuery(
                kind_request=kind_request, labels=machine["labels"], totals=machine["totals"], after=behind, limit=limit
            )
            mine = [task for task in self.model.claimable(None) if task.task.kind == kind]
            assert [record.id for record in self.run(self.store.read_candidates(look))] == looked_at(look, mine)
        if not self.model.expired():  # whether these go before others is nobody's business
            for task_id in (first, *others):
                assert self.run(self.store.ahead(task_id, limit)) == self.model.ahead(task_id, limit)

    @precondition(lambda self: len(self.claims) > 1)
    @rule(some=st.lists(st.tuples(picks, outcomes, notes), min_size=1, max_size=3))
    def finish(self, some: list[tuple[Pick, Outcome, Progress | None]]) -> None:
        fenced_outcomes: dict[Fence, FencedOutcome] = {}
        for pick, outcome, progress in some:
            fence = self.pick_claim(pick)
            # A claim is settled once; whoever comes again comes with the same.
            fenced_outcomes[fence] = self.settled.get(fence, self.fenced(fence, outcome, progress))
        self.finish_both(list(fenced_outcomes.values()))

    def finish_both(self, fenced_outcomes: list[FencedOutcome]) -> None:
        if (
            len(fenced_outcomes) > 1
        ):  # children of one may hold a key that another frees, and stores may order that freely
            fenced_outcomes = [fenced for fenced in fenced_outcomes if not _has_children(fenced)]
        verdicts = self.run(self.store.finish(fenced_outcomes))
        assert [verdict.id for verdict in verdicts] == [fenced.id for fenced in fenced_outcomes]
        for fenced, verdict in zip(fenced_outcomes, verdicts, strict=True):
            fence = (fenced.id, fenced.claim_no)
            is_first = self.model.owned(*fence) is not None
            child_ids = verdict.child_ids if is_first else ()
            self.ids += [child_id for child_id in child_ids if child_id not in self.ids]
            assert _in_line(verdict.state) in map(_in_line, self.model.finish(fenced, child_ids))
            self.model.balance()
            if is_first:
                self.settled[fence] = fenced

    @precondition(lambda self: len(self.claims) > 1)
    @rule(pick=picks, progress=notes, overdue=st.booleans())
    def report(self, pick: Pick, progress: Progress | None, overdue: bool) -> None:
        task_id, claim_no = self.pick_claim(pick)
        report = Report(id=task_id, claim_no=claim_no, progress=progress, overdue=overdue)
        assert self.run(self.store.report([report])) == [self.model.report(report)]

    # ------------------------------------------------------------ time and death

    @rule(limit=limits)
    def wake(self, limit: int) -> None:
        woken = self.run(self.store.wake(limit))
        self.model.expire(woken.expired, limit)
        assert woken.kinds == self.model.balance()
        assert (woken.next_in is not None) == self.model.has_something_to_await()
        assert (woken.next_in == 0) == bool(self.model.expired())

    def register(self) -> None:
        node_id = f"node-{len(self.node_ids)}"
        self.run(self.store.register(replace(new_node(node_id, lease=LATER), kinds=("a", "b"))))
        self.model.nodes.add(node_id)
        self.node_ids.append(node_id)

    @rule(pick=picks, verb=st.sampled_from(["cordon", "drain", "restart", "uncordon", "uncordon", "uncordon"]))
    def tell_node(self, pick: Pick, verb: Verb) -> None:
        node_id = self.pick_node(pick)
        order = self.run(self.store.act(NewAction(verb=verb, subject=node_id, who="ada")))
        assert order.is_rejected is not self.model.order(verb, node_id)

    @rule(pick=picks, leaves=st.booleans())
    def a_node_comes_and_may_replace_another(self, pick: Pick, leaves: bool) -> None:
        if leaves:
            node_id = self.pick_node(pick)
            self.run(self.store.unregister(node_id))
            self.model.nodes.discard(node_id)
        self.register()

    @rule(some=st.lists(picks, max_size=2), limit=limits)
    def reap(self, some: list[Pick], limit: int) -> None:
        gone = [self.pick_node(pick) for pick in some]
        reaped = self.run(self.store.reap(gone, limit))
        expected = self.model.reap(gone, [entry.id for entry in reaped], limit)
        assert [(entry.id, entry.node_id, _in_line(entry.state), entry.owner_deaths) for entry in reaped] == expected
        self.model.balance()
        if not self.model.nodes:  # so that there is always somebody to work
            self.register()

    @precondition(lambda self: any(task.state in FINAL for task in self.model.tasks.values()))
    @rule(states=st.sets(st.sampled_from(sorted(FINAL))), limit=limits)
    def prune(self, states: set[State], limit: int) -> None:
        # An age that lies ahead is one that every ended task has reached, whatever the clock's tick.
        cutoffs = Cutoffs(**{state.value: -LATER for state in states})
        number = self.run(self.store.prune(cutoffs, limit))
        self.model.prune(states, {record.id for record in self.records()}, number, limit)

    # ------------------------------------------------------------ operations

    @precondition(lambda self: self.model.tasks)
    @rule(
        some=some_picks,
        operation=st.sampled_from(["cancel", "retry", "retry", "put off", "call", "call", "set priority", "delete"]),
        priority=priorities,
        why=st.sampled_from([None, "why"]),
    )
    def operate(self, some: list[Pick], operation: str, priority: int, why: str | None) -> None:
        ids = self.pick_ids(some)
        if operation in ("put off", "call"):  # the first may give its place in a line to the second, or not yet
            ids = ids[:1]
        match operation:
            case "cancel":
                return self.cancel(ids, why)
            case "retry":
                return self.retry(ids)
            case "delete":
                expected = [self.model.delete(task_id) for task_id in ids]
                moved = self.run(self.store.delete(ids))
            case "set priority":
                expected = [self.model.set_priority(task_id, priority) for task_id in ids]
                changes = [Reprioritizing(id=task_id, priority=priority) for task_id in ids]
                moved = self.run(self.store.set_priority(changes))
            case _:
                delay = LATER if operation == "put off" else 0
                expected = [self.model.reschedule(task_id, later=delay > 0) for task_id in ids]
                moved = self.run(self.store.reschedule([Rescheduling(id=task_id, delay=delay) for task_id in ids]))
        return self.check_moves(ids, moved, expected)

    def cancel(self, ids: list[int], why: str | None) -> None:
        expected = [self.model.cancel(task_id, why) for task_id in ids]
        self.check_moves(ids, self.run(self.store.cancel(ids, why)), expected)

    def retry(self, ids: list[int]) -> None:
        # Of tasks with one key, the oldest comes back.
        first = {task_id: self.model.retry(task_id) for task_id in sorted(set(ids))}
        expected = [first.pop(task_id) if task_id in first else self.model.retry(task_id) for task_id in ids]
        moved = self.run(self.store.retry(ids))
        self.check_moves(ids, moved, [entry[:2] for entry in expected])
        assert [move.key_holder for move in moved] == [entry[2] for entry in expected]

    def check_moves(self, ids: list[int], moved: list[Moved], expected: Sequence[tuple[bool, State | None]]) -> None:
        assert [(move.id, move.done, _in_line(move.state)) for move in moved] == [
            (task_id, done, _in_line(state)) for task_id, (done, state) in zip(ids, expected, strict=True)
        ]
        self.model.balance()

    @rule(names=st.lists(queues, unique=True), pauses=st.sampled_from([True, False, False]))
    def pause_or_resume(self, names: list[str], pauses: bool) -> None:
        if pauses:
            assert self.run(self.store.pause(names)) == [self.model.pause(name) for name in names]
        else:
            assert self.run(self.store.resume(names)) == [self.model.resume(name) for name in names]
        self.model.balance()

    # ------------------------------------------------------------ the same state after every step

    def records(self) -> tuple[TaskRecord, ...]:
        return self.run(self.store.list_tasks(TaskQuery(limit=10_000))).tasks

    @invariant()
    def everything_is_the_same(self) -> None:
        self.run(self.compare())

    async def compare(self) -> None:
        page = await self.store.list_tasks(TaskQuery(limit=10_000))
        self.check_tasks(page.tasks)
        self.check_numbers(await self.store.counts(), await self.store.queues())
        nodes = await self.store.nodes()
        assert {node.id for node in nodes} == self.model.nodes
        assert {node.id for node in nodes if node.is_cordoned} == self.model.cordoned & self.model.nodes
        self.check_limits(await self.store.limits())
        await check_lines(self.store)
        self.model.end_groups()
        await self.check_groups()
        for node_id in self.node_ids:
            wanted = {task.id for task in self.model.running_on(node_id) if task.cancel_requested}
            assert {request.id for request in await self.store.requests(node_id)} == wanted

    def check_tasks(self, records: Sequence[TaskRecord]) -> None:
        expected = [_of_model(self.model.tasks[task_id]) for task_id in sorted(self.model.tasks, reverse=True)]
        assert [_of_record(record) for record in records] == expected

    async def check_groups(self) -> None:
        for group_id, ended_as in self.model.groups.items():
            (group,) = await self.store.groups([group_id])
            assert group is not None
            assert (group.counts, group.state) == (self.model.group_counts(group_id), ended_as)
            assert (group.ended_at is not None) == (ended_as is not None)

    def check_limits(self, found: list[LimitRecord]) -> None:
        expected = []
        for name, value in sorted(self.model.limits.items()):
            is_line = name.startswith("key:")
            numbers = self.model.line_numbers(name[4:]) if is_line else (self.model.in_use(name), 0)
            expected.append((name, value, *numbers))
        assert [(limit.name, limit.value, limit.in_use, limit.waiting) for limit in found] == expected

    def check_numbers(self, counts: dict[tuple[str, str, State], int], found: list[QueueRecord]) -> None:
        assert counts == self.model.counts()
        by_queue = {name: Counter[State]() for name in self.model.queues}
        for (queue, _, state), number in counts.items():
            by_queue[queue][state] += number
        assert [(queue.name, queue.is_paused, queue.counts) for queue in found] == [
            (name, is_paused, dict(by_queue[name])) for name, is_paused in sorted(self.model.queues.items())
        ]


def _pick(pick: Pick, alive: Sequence[Answer], all_ever: Sequence[Answer]) -> Answer:
    only_alive, index = pick
    candidates = alive if only_alive and alive else all_ever
    return candidates[-1 - index % len(candidates)]


def _has_children(fenced: FencedOutcome) -> bool:
    return isinstance(fenced.outcome, Succeeded) and bool(fenced.outcome.children)


def _in_line(state: State | None) -> State | None:
    """What a call of many tells of one of them: whether its line has a place for it may have changed by the end."""
    return State.READY if state is State.WAITING else state


def _of_record(record: TaskRecord) -> dict[str, Any]:
    return {
        "id": record.id,
        "kind": record.kind,
        "queue": record.queue,
        "key": record.key,
        "limit_key": record.limit_key,
        "group_id": record.group_id,
        "requirements": record.requirements,
        "reserved_by": record.reserved_by if record.state is State.READY else None,
        "payload": bytes(record.payload),
        "state": record.state,
        "reason": record.reason,
        "priority": record.priority,
        "claim_no": record.claim_no,
        "attempts": record.attempts,
        "crashes": record.crashes,
        "owner_deaths": record.owner_deaths,
        "server_failures": record.server_failures,
        "errors": len(record.errors),
        "node_id": record.node_id,
        "expires": record.expires_at is not None,
        "cancel_requested": record.cancel_requested,
        "overdue": record.overdue,
        "result": record.result,
        "progress": record.progress and record.progress.fraction,
    }


def _of_model(task: ModelTask) -> dict[str, Any]:
    return {
        "id": task.id,
        "kind": task.task.kind,
        "queue": task.task.queue,
        "key": task.task.key,
        "limit_key": task.limit_key,
        "group_id": task.group_id,
        "requirements": task.requirements,
        "reserved_by": task.reserved_by if task.state is State.READY else None,
        "payload": task.task.payload,
        "state": task.state,
        "reason": task.reason,
        "priority": task.priority,
        "claim_no": task.claim_no,
        "attempts": task.attempts,
        "crashes": task.crashes,
        "owner_deaths": task.owner_deaths,
        "server_failures": task.server_failures,
        "errors": min(task.errors, 20),
        "node_id": task.node_id,
        "expires": task.expires_in is not None,
        "cancel_requested": task.cancel_requested,
        "overdue": task.overdue,
        "result": msgspec.json.decode(task.result) if task.result is not None else None,
        "progress": task.progress,
    }


class MemoryMachine(StoreMachine):
    """The memory store beside the model."""

    store_name = "memory"


class SqliteMachine(StoreMachine):
    """SQLite beside the model."""

    store_name = "sqlite"


class PostgresMachine(StoreMachine):
    """PostgreSQL beside the model."""

    store_name = "postgres"


class DistributedMachine(StoreMachine):
    """PostgreSQL with the profile of distributed databases beside the model."""

    store_name = "distributed"


LONG_ENOUGH_TO_SHRINK = pytest.mark.timeout(600)
EXAMPLES = {"memory": 40, "sqlite": 16, "postgres": 8, "distributed": 4}


def examples(store: str) -> int:
    """How many stories the suite tries with a store; the long form tries six times as many."""
    return EXAMPLES[store] * (6 if os.environ.get("SYNERGON_LONG") else 1)


TestMemory = LONG_ENOUGH_TO_SHRINK(MemoryMachine.TestCase)
TestMemory.settings = settings(
    max_examples=examples("memory"),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
TestSqlite = LONG_ENOUGH_TO_SHRINK(SqliteMachine.TestCase)
TestSqlite.settings = settings(TestMemory.settings, max_examples=examples("sqlite"))
TestPostgres = LONG_ENOUGH_TO_SHRINK(PostgresMachine.TestCase)
TestPostgres.settings = settings(TestMemory.settings, max_examples=examples("postgres"))
TestDistributed = LONG_ENOUGH_TO_SHRINK(DistributedMachine.TestCase)
TestDistributed.settings = settings(TestMemory.settings, max_examples=examples("distributed"))
