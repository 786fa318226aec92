"""What a store does, in plain dicts and lists: slow, and obviously right. The stores are compared with it.

Time stands still here: a task is due at once or in an hour, and expires at once, in an hour or never. Where the port
leaves a store the choice (which ids, which of many tasks under a limit), the model is told the store's choice and
checks that it was a legal one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from msgspec.structs import replace
from tests.stores.model_claim import ModelClaim, ModelClaims

from synergon.errors import KeyConflict, LeaseLost
from synergon.model.claims import ClaimRequest, KindRequest
from synergon.model.lifecycle import FINAL, Reason, State, clears_suspicion, is_legal
from synergon.model.outcomes import (
    Cancelled,
    Crashed,
    Failed,
    FencedOutcome,
    HandedBack,
    KeyAssigned,
    Outcome,
    Refused,
    Report,
    Retrying,
    ServerFault,
    Snoozed,
    Succeeded,
)
from synergon.model.requirements import suspect_text, with_refusal, without_refusals
from synergon.model.tasks import NewTask
from synergon.policies import CRASH_LIMIT, OWNER_DEATH_LIMIT, REFUSAL_LIMIT, SERVER_FAILURE_LIMIT

LATER = 3600 * 1_000_000
"""An hour: a moment that does not come while a test runs."""


@dataclass
class ModelTask:
    """One task."""

    id: int
    task: NewTask
    state: State
    priority: int
    expires_in: int | None
    limit_key: str | None = None
    group_id: int | None = None
    holds: frozenset[str] = frozenset()
    """The limits that it holds while it runs."""
    reserved_by: str | None = None
    """The node that has reserved capacity for it."""
    is_spared: bool = False
    """Whether it has yielded, and may not be asked to again."""
    reason: Reason | None = None
    claim_no: int = 0
    attempts: int = 0
    crashes: int = 0
    owner_deaths: int = 0
    server_failures: int = 0
    is_suspect: bool = False
    errors: int = 0
    node_id: str | None = None
    cancel_requested: bool = False
    overdue: bool = False
    result: bytes | None = None
    progress: float | None = None
    finished_no: int | None = None
    """The last claim that its owner settled."""
    verdict: State | None = None
    """What that owner was told."""
    has_moved_since: bool = False
    """Whether anybody has moved the task after that."""

    def move(self, state: State) -> None:
        """Go to another state. A model that makes an illegal move is wrong itself."""
        assert state is self.state or is_legal(self.state, state), f"{self.state} → {state}"
        self.state = state
        self.has_moved_since = True

    def end(self, state: State, reason: Reason | None) -> None:
        """Reach a final state."""
        self.move(state)
        self.reason = reason
        self.reserved_by = None

    def requeue(self, state: State) -> None:
        """Go on waiting."""
        self.move(state)
        self.node_id = None
        self.overdue = False

    def crash(self) -> None:
        """Lose its child process, and run again if that may be."""
        self.crashes += 1
        self.owner_deaths = 0
        self._lose_process(is_last=self.crashes >= CRASH_LIMIT)

    def lose_owner(self) -> None:
        """Lose its node, and run again if that may be."""
        self.owner_deaths += 1
        self._lose_process(is_last=self.owner_deaths >= OWNER_DEATH_LIMIT)

    def _lose_process(self, *, is_last: bool) -> None:
        self.is_suspect = True
        self.errors += 1
        self.attempts -= 1
        if self.cancel_requested:
            self.end(State.CANCELLED, Reason.CANCELLED)
        elif is_last:
            self.end(State.FAILED, Reason.CRASHED)
        else:
            self.requeue(State.READY)

    @property
    def requirements(self) -> str:
        """What its row says."""
        return suspect_text(self.task.requirements, is_suspect=True) if self.is_suspect else self.task.requirements

    @property
    def is_waiting(self) -> bool:
        """Live, and not running."""
        return self.state not in FINAL and self.state is not State.RUNNING


class Model:
    """All tasks, queues and nodes."""

    def __init__(self) -> None:
        self.tasks: dict[int, ModelTask] = {}
        self.queues: dict[str, bool] = {}
        """Whether each queue is paused."""
        self.nodes: set[str] = set()
        self.cordoned: set[str] = set()
        self.limits: dict[str, int | None] = {}
        """What was declared, or set since."""
        self.groups: dict[int, State | None] = {}
        """How each group has ended; None if it has not."""
        self.holds: dict[tuple[str, str | None], int] = {}
        """The tasks that hold keys with `unique_for`, for longer than a test runs."""

    # ------------------------------------------------------------ questions

    def holder(self, task: NewTask) -> ModelTask | None:
        """The live task that has this task's key."""
        if task.key is None:
            return None
        live = [other for other in self.tasks.values() if other.state not in FINAL]
        holders = [other for other in live if (other.task.kind, other.task.key) == (task.kind, task.key)]
        assert len(holders) <= 1
        return holders[0] if holders else None

    def owned(self, task_id: int, claim_no: int) -> ModelTask | None:
        """The task, if this claim owns it."""
        task = self.tasks.get(task_id)
        return task if task and task.claim_no == claim_no and task.state is State.RUNNING else None

    def running_on(self, node_id: str) -> list[ModelTask]:
        """What runs there."""
        return [task for task in self.tasks.values() if task.node_id == node_id and task.state is State.RUNNING]

    def expired(self) -> list[int]:
        """What ought to end because nobody started it in time."""
        return [task.id for task in self.tasks.values() if task.is_waiting and task.expires_in == 0]

    def has_something_to_await(self) -> bool:
        """Whether the clock will have to do with any task."""
        return any(
            task.state is State.SCHEDULED or (task.is_waiting and task.expires_in is not None)
            for task in self.tasks.values()
        )

    def counts(self) -> dict[tuple[str, str, State], int]:
        """Numbers by queue, kind and state."""
        return dict(Counter((task.task.queue, task.task.kind, task.state) for task in self.tasks.values()))

    # ------------------------------------------------------------ groups

    def group_counts(self, group_id: int) -> dict[State, int]:
        """What its tasks do."""
        return dict(Counter(task.state for task in self.tasks.values() if task.group_id == group_id))

    def end_groups(self) -> None:
        """Whatever has no live task has ended, and stays so."""
        for group_id, ended_as in self.groups.items():
            states = self.group_counts(group_id)
            if ended_as is None and all(state in FINAL for state in states):
                worst = (state for state in (State.FAILED, State.CANCELLED) if state in states)
                self.groups[group_id] = next(worst, State.SUCCEEDED)

    # ------------------------------------------------------------ limits and lines

    def set_limit(self, name: str, value: int | None) -> bool:
        """For everybody, from now on."""
        if name not in self.limits:
            return False
        self.limits[name] = value
        return True

    def in_use(self, name: str) -> int:
        """How many running tasks hold the limit."""
        return sum(name in task.holds for task in self.tasks.values() if task.state is State.RUNNING)

    def balance(self) -> Counter[str]:
        """Put all lines in order; how many of each kind have become ready."""
        lines: dict[tuple[str, str], list[ModelTask]] = {}
        for task in sorted(self.tasks.values(), key=lambda task: (-task.priority, task.id)):
            if task.limit_key is not None and task.state in (State.READY, State.WAITING, State.RUNNING):
                lines.setdefault((task.task.kind, task.limit_key), []).append(task)
        promoted: Counter[str] = Counter()
        for (kind, _), members in lines.items():
            promoted[kind] += self._balance(members, self.limits.get(f"key:{kind}"))
        return +promoted

    def _balance(self, members: list[ModelTask], value: int | None) -> int:
        others = [task for task in members if task.state is not State.RUNNING]
        if value is None:
            first = others
        else:
            is_open = [task for task in others if not self.queues[task.task.queue]]
            first = is_open[: max(value - (len(members) - len(others)), 0)]
        were_waiting = [task for task in first if task.state is State.WAITING]
        for task in others:
            state = State.READY if task in first else State.WAITING
            if task.state is not state:
                task.move(state)
                task.reserved_by = None
        return len(were_waiting)

    def line_numbers(self, kind: str) -> tuple[int, int]:
        """How many tasks of all lines of a kind run, and how many wait."""
        states = [task.state for task in self.tasks.values() if task.limit_key and task.task.kind == kind]
        return states.count(State.RUNNING), states.count(State.WAITING)

    # ------------------------------------------------------------ tasks come in

    def insert(self, tasks: Sequence[NewTask], new_ids: Iterator[int]) -> list[tuple[int, bool, State | None]]:
        """Store all of them or raise; id, whether it was created, and state of each."""
        keys: list[tuple[str, str | None]] = []
        for task in tasks:
            self._reject_conflict(task, is_earlier=task.key is not None and (task.kind, task.key) in keys)
            keys.append((task.kind, task.key))
        return [self._put(task, task.on_conflict, new_ids) for task in tasks]

    def _reject_conflict(self, task: NewTask, *, is_earlier: bool) -> None:
        holder = self.holder(task)
        is_running = holder is not None and holder.state is State.RUNNING
        is_taken = holder is not None or is_earlier
        if (task.on_conflict == "raise" and is_taken) or (task.on_conflict == "replace" and is_running):
            raise KeyConflict("taken", holder.id if holder else 0)
        if task.on_conflict != "return" and holder is None and (task.kind, task.key) in self.holds:
            raise KeyConflict("held", self.holds[task.kind, task.key])

    def _put(self, task: NewTask, on_conflict: str, new_ids: Iterator[int]) -> tuple[int, bool, State | None]:
        holder, name = self.holder(task), (task.kind, task.key)
        state = State.SCHEDULED if task.delay else State.READY
        if holder is None and name in self.holds:
            return self.holds[name], False, None
        if holder is None:
            new = ModelTask(next(new_ids), task, state, task.priority, task.expires_in, task.limit_key)
            assert new.id not in self.tasks
            assert new.id > max(self.tasks, default=0)
            self.tasks[new.id] = new
            self.queues.setdefault(task.queue, False)
            self._hold(task, new.id)
            return new.id, True, state
        if on_conflict == "replace":
            holder.requeue(state)
            holder.task, holder.priority, holder.expires_in = task, task.priority, task.expires_in
            holder.limit_key = task.limit_key
            holder.attempts = holder.crashes = holder.owner_deaths = holder.server_failures = holder.errors = 0
            holder.is_suspect = False
            holder.progress = holder.reserved_by = None
            holder.is_spared = False
            self.queues.setdefault(task.queue, False)
            self._hold(task, holder.id)
        return holder.id, False, holder.state

    def _hold(self, task: NewTask, task_id: int) -> None:
        """Hold the key of a task with `unique_for`, unless another task does: then this one was retried meanwhile."""
        if task.unique_for is not None:
            self.holds.setdefault((task.kind, task.key), task_id)

    # ------------------------------------------------------------ tasks run

    def claim(self, request: ClaimRequest) -> ModelClaims:
        """What the node gets, in order, and what it has reserved capacity for."""
        if request.node_id not in self.nodes:
            raise LeaseLost(request.node_id)
        if request.node_id in self.cordoned:
            return ModelClaims(is_cordoned=True)

        def start(task: ModelTask, holds: frozenset[str]) -> None:
            self._start(task, request.node_id)
            task.holds = holds

        def may_keep(task_id: int) -> bool:
            keeper = self.tasks[task_id].reserved_by
            return keeper in (None, request.node_id) or keeper not in self.nodes - self.cordoned

        reserved_task = self.tasks.get(request.reserved_task or 0)

        def room_for_kept() -> KindRequest | None:
            """If it may be kept on, and has a place in its limits."""
            if reserved_task is None or request.reserve_microseconds <= 0:
                return None
            if reserved_task not in self.claimable(request.queues) or not may_keep(reserved_task.id):
                return None
            kind_requests = [
                kind_request for kind_request in request.kinds if kind_request.kind == reserved_task.task.kind
            ]
            return next(
                (
                    kind_request
                    for kind_request in kind_requests
                    if all(self._places(name) > 0 for name in kind_request.limits)
                ),
                None,
            )

        kind_request = room_for_kept()
        left_to_kept = frozenset[str]() if kind_request is None else frozenset(kind_request.limits)
        claim = ModelClaim(request, self._places, may_keep, left_to_kept, self.nodes)
        claim.choose(self.claimable(request.queues), start)
        if reserved_task is not None and reserved_task.reserved_by == request.node_id:
            reserved_task.reserved_by = None
        if reserved_task is not None and room_for_kept() is not None:
            claim.claims.reserved = reserved_task.id
        if claim.claims.reserved is not None:
            self.tasks[claim.claims.reserved].reserved_by = request.node_id
        return claim.claims

    def claimable(self, queues: frozenset[str] | None) -> list[ModelTask]:
        """What might be taken from these queues."""
        return [
            task
            for task in self.tasks.values()
            if task.state is State.READY
            and task.expires_in != 0
            and not self.queues[task.task.queue]
            and (queues is None or task.task.queue in queues)
        ]

    def ahead(self, task_id: int, limit: int) -> int | None:
        """How many of the same kind, state and line go before."""
        task = self.tasks.get(task_id)
        if task is None or task.state not in (State.READY, State.WAITING):
            return None
        rivals = [other for other in self.tasks.values() if other.task.kind == task.task.kind]
        in_line = [other for other in rivals if task.limit_key in (None, other.limit_key)]
        before = [other for other in in_line if (-other.priority, other.id) < (-task.priority, task.id)]
        return min(sum(other.state is task.state for other in before), limit)

    def order(self, verb: str, node_id: str) -> bool:
        """Tell a node; whether it is there."""
        if node_id in self.nodes and verb == "uncordon":
            self.cordoned.discard(node_id)
        elif node_id in self.nodes:
            self.cordoned.add(node_id)
        return node_id in self.nodes

    def _places(self, name: str) -> float:
        value = self.limits.get(name)
        return inf if value is None else value - self.in_use(name)

    def _start(self, task: ModelTask, node_id: str) -> None:
        task.move(State.RUNNING)
        task.claim_no += 1
        task.attempts += 1
        task.node_id = node_id
        task.reserved_by = None

    def finish(self, fenced: FencedOutcome, child_ids: Sequence[int]) -> set[State | None]:
        """Settle one attempt; the verdicts that are right for it."""
        task = self.owned(fenced.id, fenced.claim_no)
        if task is None:
            return self._already(fenced)
        if fenced.progress is not None:
            task.progress = fenced.progress.fraction
        self._settle(task, fenced.outcome, child_ids)
        task.finished_no = task.claim_no
        task.verdict = task.state
        task.has_moved_since = False
        return {task.state}

    def _already(self, fenced: FencedOutcome) -> set[State | None]:
        task = self.tasks.get(fenced.id)
        if task is None or task.finished_no != fenced.claim_no:
            return {None}
        if not task.has_moved_since:
            return {task.verdict}
        # The store may answer with what it said then, or with what has become of it since; a task that runs again
        # was ready in between.
        return {task.verdict, State.READY if task.state is State.RUNNING else task.state}

    def _settle(self, task: ModelTask, outcome: Outcome, child_ids: Sequence[int]) -> None:
        if isinstance(outcome, Succeeded) and not task.cancel_requested:
            task.end(State.SUCCEEDED, None)
            task.result = outcome.result
            self._check_children(outcome, child_ids)
            return
        assert not child_ids
        if isinstance(outcome, ServerFault) and task.server_failures >= SERVER_FAILURE_LIMIT:
            outcome = outcome.otherwise
        if isinstance(outcome, Crashed):
            task.crash()
            return
        if isinstance(outcome, Retrying | Snoozed | ServerFault):
            task.owner_deaths, task.is_suspect = 0, task.crashes > 0
        if isinstance(outcome, Failed | Retrying | Refused | ServerFault) or (
            isinstance(outcome, Cancelled) and outcome.why
        ):
            task.errors += 1
        if isinstance(outcome, Snoozed | HandedBack | KeyAssigned | Refused | ServerFault):
            task.attempts -= 1
        if task.cancel_requested or isinstance(outcome, Cancelled):
            task.end(State.CANCELLED, Reason.CANCELLED)
        elif isinstance(outcome, Failed):
            task.end(State.FAILED, outcome.reason)
        elif isinstance(outcome, Refused) and not self._is_left_to_others(task):
            task.end(State.FAILED, Reason.ERROR)
        else:
            is_later = isinstance(outcome, Retrying | Snoozed | HandedBack) and (outcome.delay or 0) > 0
            task.requeue(State.SCHEDULED if is_later else State.READY)
            task.server_failures += isinstance(outcome, ServerFault)
            if isinstance(outcome, KeyAssigned):
                task.limit_key = outcome.limit_key
            if isinstance(outcome, HandedBack):
                task.is_spared |= outcome.protected_for > 0

    def _is_left_to_others(self, task: ModelTask) -> bool:
        """Every node knows every kind and serves every queue here."""
        assert task.node_id is not None
        left = with_refusal(task.task.requirements, task.node_id)
        if self.nodes <= set(left.refused_by) or len(left.refused_by) >= REFUSAL_LIMIT:
            return False
        task.task = replace(task.task, requirements=left.text)
        return True

    def _check_children(self, outcome: Succeeded, child_ids: Sequence[int]) -> None:
        for child, child_id in zip(outcome.children, child_ids, strict=True):
            assert self._put(child, "return", iter([child_id]))[0] == child_id

    def report(self, report: Report) -> bool:
        """Take a note."""
        task = self.owned(report.id, report.claim_no)
        if task is None:
            return False
        if report.progress is not None:
            task.progress = report.progress.fraction
        task.overdue |= report.overdue
        return True

    # ------------------------------------------------------------ time and death

    def expire(self, chosen: Sequence[int], limit: int) -> None:
        """End the expired tasks that the store has chosen under its limit."""
        candidates = self.expired()
        assert len(set(chosen)) == len(chosen) == min(limit, len(candidates))
        assert set(chosen) <= set(candidates)
        for task_id in chosen:
            self.tasks[task_id].end(State.FAILED, Reason.EXPIRED)

    def reap(self, gone: Sequence[str], chosen: Sequence[int], limit: int) -> list[tuple[int, str, State, int]]:
        """Take from the dead the tasks that the store has chosen; id, node, state and lost owners of each."""
        alive = self.nodes - set(gone)
        orphans = {task.id for task in self.tasks.values() if task.state is State.RUNNING and task.node_id not in alive}
        assert len(set(chosen)) == len(chosen) == min(limit, len(orphans))
        assert set(chosen) <= orphans
        reaped = [self._take_back(self.tasks[task_id]) for task_id in chosen]
        self.nodes = {node_id for node_id in self.nodes if node_id in alive or self.running_on(node_id)}
        return reaped

    def _take_back(self, task: ModelTask) -> tuple[int, str, State, int]:
        node_id = task.node_id
        assert node_id is not None
        task.lose_owner()
        return task.id, node_id, task.state, task.owner_deaths

    def prune(self, states: set[State], reserved: set[int], number: int, limit: int) -> None:
        """Drop the ended tasks that the store has not kept, and the groups that go with them. As long as fewer tasks
        than the limit are gone, those of one state after the other go: first single tasks, up to the limit, and then
        all groups that have ended so and have no live task."""
        gone = self.tasks.keys() - reserved
        expected = 0
        for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
            if state not in states or expected >= limit:
                continue
            single = {task.id for task in self.tasks.values() if task.state is state and task.group_id is None}
            assert len(single & gone) == min(limit - expected, len(single))
            expected += len(single & gone)
            old = [group_id for group_id in self.groups if self._is_old(group_id, state)] if expected < limit else []
            for group_id in old:
                members = {task.id for task in self.tasks.values() if task.group_id == group_id}
                assert members <= gone
                expected += len(members)
                del self.groups[group_id]
        assert len(gone) == number == expected
        for task_id in gone:
            del self.tasks[task_id]

    def _is_old(self, group_id: int, state: State) -> bool:
        return self.groups[group_id] is state and all(found in FINAL for found in self.group_counts(group_id))

    # ------------------------------------------------------------ operations

    def cancel(self, task_id: int, why: str | None) -> tuple[bool, State | None]:
        """Whether it was done, and the state now; so with every operation."""
        task = self.tasks.get(task_id)
        if task is None or task.state in FINAL:
            return False, task.state if task else None
        if why is not None and not task.cancel_requested:
            task.errors += 1
        if task.state is State.RUNNING:
            task.cancel_requested = True
        else:
            task.end(State.CANCELLED, Reason.CANCELLED)
        return True, task.state

    def retry(self, task_id: int) -> tuple[bool, State | None, int | None]:
        """Also the live task that holds the key."""
        task = self.tasks.get(task_id)
        if task is None or task.state not in FINAL:
            return False, task.state if task else None, None
        holder = self.holder(task.task)
        if holder is not None:
            return False, task.state, holder.id
        if clears_suspicion(task.state, task.reason):
            task.is_suspect = False
        task.requeue(State.READY)
        task.attempts = task.crashes = task.owner_deaths = task.server_failures = 0
        task.expires_in = task.reason = task.result = task.progress = None
        task.cancel_requested = task.is_spared = False
        task.task = replace(task.task, requirements=without_refusals(task.task.requirements))
        return True, State.READY, None

    def delete(self, task_id: int) -> tuple[bool, State | None]:
        """Forget a task that is not running."""
        task = self.tasks.get(task_id)
        if task is None or task.state is State.RUNNING:
            return False, task.state if task else None
        del self.tasks[task_id]
        self.holds = {name: holder for name, holder in self.holds.items() if holder != task_id}
        return True, None

    def reschedule(self, task_id: int, *, later: bool) -> tuple[bool, State | None]:
        """Put a task off, or call it."""
        task = self.tasks.get(task_id)
        if task is None or task.state not in (State.SCHEDULED, State.READY):
            return False, task.state if task else None
        task.requeue(State.SCHEDULED if later else State.READY)
        task.reserved_by = None
        return True, task.state

    def set_priority(self, task_id: int, priority: int) -> tuple[bool, State | None]:
        """Change the order."""
        task = self.tasks.get(task_id)
        if task is None or not task.is_waiting:
            return False, task.state if task else None
        task.priority = priority
        return True, task.state

    def pause(self, queue: str) -> bool:
        """Close a queue."""
        was_open = not self.queues.get(queue, False)
        self.queues[queue] = True
        return was_open

    def resume(self, queue: str) -> bool:
        """Open a queue."""
        was_paused = self.queues.get(queue, False)
        if was_paused:
            self.queues[queue] = False
        return was_paused
