"""Sees every statement that the store has executed, and holds it to the promises.

It keeps its own picture of all tasks, leases, pauses and wishes, made only from statements and their answers, and
compares each change of a row with what that statement may do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation.attempt_rules import check_attempts
from tests.simulation.outcome_rules import check_outcome

from synergon.model.attempts import AttemptRecord
from synergon.model.claims import Claim, ClaimRequest
from synergon.model.lifecycle import FINAL, Reason, State, is_legal
from synergon.model.nodes import NewNode
from synergon.model.operator_actions import NewAction
from synergon.model.outcomes import Cancelled, FencedOutcome, HandedBack, Succeeded, Verdict
from synergon.model.requirements import PROCESS, THREAD, UNIT, is_suspect_text
from synergon.model.tasks import Moved, Reaped
from synergon.policies import CRASH_LIMIT, OWNER_DEATH_LIMIT, SERVER_FAILURE_LIMIT
from synergon.stores.memory.row import Row
from synergon.stores.memory.tables import Tables

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

STILL: Final = {State.SCHEDULED, State.READY}

MOVES_OF: Final[dict[str, set[tuple[State, State]]]] = {
    "insert": {(old, new) for old in STILL for new in STILL},
    "claim": {(State.READY, State.RUNNING)},
    "finish": {(State.RUNNING, state) for state in FINAL | STILL},
    "wake": {(State.SCHEDULED, State.READY), *((old, State.FAILED) for old in STILL)},
    "reap": {(State.RUNNING, state) for state in STILL | {State.FAILED, State.CANCELLED}},
    "cancel": {(State.RUNNING, State.RUNNING), *((old, State.CANCELLED) for old in STILL)},
    "retry": {(state, State.READY) for state in FINAL},
    "reschedule": {(old, new) for old in STILL for new in STILL},
    "set_priority": {(state, state) for state in STILL},
    "extend_timeout": {(State.RUNNING, State.RUNNING)},
    "update_meta": {(state, state) for state in State},
}
"""From where to where each statement may take a task."""

READING: Final = {
    "nodes",
    "get",
    "counts",
    "queues",
    "list_tasks",
    "requests",
    "now",
    "report",
    "secret",
    "dependencies",
}
LEASING: Final = {"register", "renew", "unregister", "pause", "resume", "append_statistics"}
"""These touch no task."""


class Seen(NamedTuple):
    """A row, as it was after the last statement."""

    state: State
    claim_no: int
    attempts: int
    crashes: int
    cancel_requested: bool
    node_id: str | None
    reason: Reason | None
    priority: int
    run_at: int
    owner_deaths: int
    server_failures: int
    requirements: str
    ended_attempts: tuple[AttemptRecord, ...]

    @property
    def is_suspect(self) -> bool:
        """Whether it must run isolated."""
        return is_suspect_text(self.requirements)


class Auditor:
    """Looks after each statement."""

    def __init__(self, world: World, tables: Tables) -> None:
        self._world = world
        self._tables = tables
        self.seen: dict[int, Seen] = {}
        self.moved_at: dict[int, float] = {}
        """When each task came into the state it is in."""
        self.moved_by: dict[int, str] = {}
        """By which statement."""
        self.paused: set[str] = set()
        self.accepted: set[tuple[int, int]] = set()
        self.owners: dict[str, Process] = {}
        """Whose node ids these are."""
        self.owed: dict[Process, dict[str, float]] = {}
        """The kinds of which a node's last claim has left some, and when."""
        self._leases: dict[str, int] = {}
        self._wanted_cancelled: set[int] = set()
        self.before_claim: dict[int, Seen] = {}
        """All tasks, as they were when the last claim was asked for."""

    @property
    def now(self) -> int:
        """The store's clock."""
        return self._tables.latest_moment

    def applied(self, process: Process, name: str, args: tuple[Any, ...], answer: Any, *, is_done: bool) -> None:
        """A statement was executed; if not `is_done` it was refused."""
        if name in READING:
            return
        before = self.seen
        changed = {} if name in LEASING else self._look()
        self.moved_by.update(dict.fromkeys(changed, name))
        for task_id, old in changed.items():
            self._world.log(f"{process}: {name}: task {task_id}: {_told(old)} → {_told(self.seen.get(task_id))}")
            self._check_move(name, task_id, old, self.seen.get(task_id))
            if task_id not in self.seen:
                self._world.statistics.deleted(task_id)
        check = getattr(self, f"_check_{name}", None)
        if check is not None and is_done:
            check(process, args, answer, changed, before)

    def _look(self) -> dict[int, Seen | None]:
        """What has changed since the last look, with what it was before."""
        before, rows = self.seen, self._tables.rows
        fresh = {task_id: Seen._make(row) for task_id, row in _rows(rows) if before.get(task_id) != row}
        changed = {task_id: before.get(task_id) for task_id in fresh}
        if len(rows) < len(before) + sum(old is None for old in changed.values()):
            changed.update({task_id: old for task_id, old in before.items() if task_id not in rows})
        if changed:
            self.seen = {task_id: seen for task_id, seen in {**before, **fresh}.items() if task_id in rows}
            self.moved_at.update(dict.fromkeys(changed, self._world.loop.time()))
        return changed

    def fail(self, task_id: int, what: str) -> None:
        """A promise was broken."""
        self._world.fail(f"task {task_id}: {what}")

    # ------------------------------------------------------------ every statement

    def _check_move(self, name: str, task_id: int, old: Seen | None, new: Seen | None) -> None:
        if new is None:
            if name not in ("delete", "prune") or old is None or old.state is State.RUNNING:
                self.fail(task_id, f"vanished in {name}")
            return
        if old is None:
            if name not in ("insert", "finish") or new.claim_no:
                self.fail(task_id, f"appeared in {name}")
            return
        if (old.state, new.state) not in MOVES_OF.get(name, ()):
            self.fail(task_id, f"{name} may not take it from {old.state} to {new.state}")
        if old.state is not new.state and not is_legal(old.state, new.state):
            self.fail(task_id, f"no task goes from {old.state} to {new.state}")
        if new.claim_no != old.claim_no + (name == "claim"):
            self.fail(task_id, f"{name} made claim number {new.claim_no} of {old.claim_no}")
        if new.crashes > CRASH_LIMIT or (new.crashes == CRASH_LIMIT and new.state not in FINAL):
            self.fail(task_id, f"it has crashed {new.crashes} times and is {new.state}")
        if new.owner_deaths > OWNER_DEATH_LIMIT or (new.owner_deaths == OWNER_DEATH_LIMIT and new.state not in FINAL):
            self.fail(task_id, f"{new.owner_deaths} of its owners have died and it is {new.state}")
        if new.server_failures > SERVER_FAILURE_LIMIT:
            self.fail(task_id, f"it has blamed its servers {new.server_failures} times")
        if new.state is State.READY and new.run_at > self.now:
            self.fail(task_id, "it is ready before it is due")
        wrong = check_attempts(name, old, new)
        if wrong is not None:
            self.fail(task_id, wrong)
        self._check_wish(task_id, old, new)

    def _check_wish(self, task_id: int, old: Seen, new: Seen) -> None:
        """A cancel is sticky."""
        if task_id in self._wanted_cancelled and old.state is State.RUNNING is not new.state:
            self._wanted_cancelled.discard(task_id)
            if new.state is not State.CANCELLED:
                self.fail(task_id, f"it was to be cancelled, and is {new.state}")

    # ------------------------------------------------------------ one statement each

    def _check_register(self, process: Process, args: tuple[NewNode], *_: Any) -> None:
        self.owners[args[0].id] = process
        self._leases[args[0].id] = self.now + args[0].lease

    def _check_renew(self, process: Process, args: tuple[str, int, bytes | None], is_known: bool, *_: Any) -> None:
        if is_known:
            self._leases[args[0]] = self.now + args[1]

    def _check_unregister(self, process: Process, args: tuple[str], *_: Any) -> None:
        self._leases.pop(args[0], None)

    def _check_pause(self, process: Process, args: tuple[Sequence[str]], *_: Any) -> None:
        self.paused.update(args[0])

    def _check_resume(self, process: Process, args: tuple[Sequence[str]], *_: Any) -> None:
        self.paused.difference_update(args[0])

    def _check_act(self, process: Process, args: tuple[NewAction], *_: Any) -> None:
        order = args[0]
        if order.verb == "pause":
            self.paused.add(order.subject)
        elif order.verb == "resume":
            self.paused.discard(order.subject)

    def _check_cancel(self, process: Process, args: Any, moves: list[Moved], *_: Any) -> None:
        self._wanted_cancelled.update(moved.id for moved in moves if moved.state is State.RUNNING)

    def _check_claim(
        self,
        process: Process,
        args: tuple[ClaimRequest],
        claims: list[Claim],
        changed: dict[int, Seen | None],
        before: dict[int, Seen],
    ) -> None:
        request = args[0]
        if self.is_over(request.node_id):
            self._world.fail(f"{process} claims as node {request.node_id} without a lease")
        self.before_claim = before
        eligible = self._in_order(before)
        expected = self._first_of(eligible, request)
        self._note_leftovers(process, request, set(eligible) - set(expected))
        if [claim.id for claim in claims] != expected or set(expected) != changed.keys():
            self._world.fail(f"{process} was given {[claim.id for claim in claims]} instead of {expected}")
        for claim in claims:
            if claim.max_attempts is not None and claim.attempts > claim.max_attempts:
                self.fail(claim.id, f"attempt {claim.attempts} of {claim.max_attempts}")

    def _in_order(self, before: dict[int, Seen]) -> list[int]:
        """What may be claimed at all."""
        ready = [task_id for task_id, seen in before.items() if seen.state is State.READY]
        ready.sort(key=lambda task_id: (-before[task_id].priority, before[task_id].is_suspect, task_id))
        return [task_id for task_id in ready if self.is_open(self.row(task_id))]

    def _first_of(self, eligible: list[int], request: ClaimRequest) -> list[int]:
        kind_requests = {kind_request.kind: kind_request.count for kind_request in request.kinds}
        free = {name: request.free[name] // UNIT for name in (PROCESS, THREAD)}
        taken: list[int] = []
        for task_id in eligible:
            kind = self.row(task_id).task.kind
            needs = self._runs_in(task_id, kind)
            if (
                kind_requests.get(kind, 0) > 0
                and len(taken) < request.limit
                and all(free[name] >= number for name, number in needs.items())
            ):
                free = {name: number - needs.get(name, 0) for name, number in free.items()}
                kind_requests[kind] -= 1
                taken.append(task_id)
        return taken

    def _runs_in(self, task_id: int, kind: str) -> dict[str, int]:
        runs_in = "process" if self.before_claim[task_id].is_suspect else self._world.kinds[kind].policy.runs_in
        return {"process": {PROCESS: 1}, "thread": {THREAD: 1}, "loop": {}}[runs_in]

    def _note_leftovers(self, process: Process, request: ClaimRequest, left: set[int]) -> None:
        """A node that had no room for more of a kind must come back for them."""
        owed = self.owed.setdefault(process, {})
        kinds = {self.row(task_id).task.kind for task_id in left}
        for kind_request in request.kinds:
            owed.pop(kind_request.kind, None)
            if kind_request.kind in kinds:
                owed[kind_request.kind] = self._world.loop.time()

    def _check_finish(
        self,
        process: Process,
        args: tuple[Sequence[FencedOutcome]],
        verdicts: list[Verdict],
        changed: dict[int, Seen | None],
        before: dict[int, Seen],
    ) -> None:
        # A body that was given back by a process that stops may return after all: the first word counts.
        fenced_outcomes = {(fenced.id, fenced.claim_no): fenced for fenced in reversed(args[0])}
        children = 0
        for task_id, old in changed.items():
            if old is None:
                children -= 1
                continue
            fence = (task_id, old.claim_no)
            fenced = fenced_outcomes.get(fence)
            if fenced is None or fence in self.accepted:
                self.fail(task_id, f"an outcome was accepted for claim {old.claim_no} that is not its own")
                continue
            self.accepted.add(fence)
            if self.seen[task_id].state is State.SUCCEEDED:
                self._world.statistics.succeeded(process, task_id)
            children += self._check_outcome(fenced, old)
        if children:
            self._world.fail(f"{process}: finish stored {-children} children too many")
        for fence in fenced_outcomes:
            old = before.get(fence[0])
            if old is not None and (old.state, old.claim_no) == (State.RUNNING, fence[1]) and fence[0] not in changed:
                self.fail(fence[0], "a good outcome was refused")

    def _check_outcome(self, fenced: FencedOutcome, old: Seen) -> int:
        """How many children it must have brought."""
        new = self.seen[fenced.id]
        wrong = check_outcome(fenced.outcome, old, new)
        if wrong is not None:
            self.fail(fenced.id, wrong)
        if isinstance(fenced.outcome, Cancelled) and not old.cancel_requested:
            self._check_own_wish(fenced.id)
        if isinstance(fenced.outcome, HandedBack) and (fenced.id, old.claim_no) in self._world.executions.returned:
            self.fail(fenced.id, "its body had returned, and it was handed back")
        if isinstance(fenced.outcome, Succeeded) and new.state is State.SUCCEEDED:
            return len(fenced.outcome.children)
        return 0

    def _check_own_wish(self, task_id: int) -> None:
        """Nobody has asked for the cancel, so it must have been the body itself."""
        if b'"cancel"' not in self.row(task_id).task.payload:
            self.fail(task_id, "it was cancelled, and nobody had wanted that")

    def _check_reap(
        self, process: Process, args: Any, reaped: list[Reaped], changed: dict[int, Seen | None], *_: Any
    ) -> None:
        for task in reaped:
            owner = self.owners[task.node_id]
            if owner.is_alive and not self.is_over(task.node_id):
                self.fail(task.id, f"{process} took it from {owner}, which lives and has its lease")
        for task_id, old in changed.items():
            new = self.seen[task_id]
            if old is not None and (new.crashes - old.crashes, new.attempts - old.attempts) != (0, -1):
                self.fail(task_id, "its node's death is charged to it, or does not give the attempt back")
            if old is not None and (new.owner_deaths - old.owner_deaths, new.is_suspect) != (1, True):
                self.fail(task_id, "its node's death does not make it a suspect")
        if {task.id for task in reaped} != changed.keys():
            self._world.fail(f"{process}: reap took other tasks than it said")

    def row(self, task_id: int) -> Row:
        """The task itself."""
        return self._tables.rows[task_id]

    def is_open(self, row: Row) -> bool:
        """Whether a ready task may be claimed."""
        return row.task.queue not in self.paused and (row.expires_at is None or row.expires_at > self.now)

    def is_over(self, node_id: str) -> bool:
        """Whether the node has no lease."""
        return self.now > self._leases.get(node_id, 0)


_peek: Final = attrgetter(*(f"task.{name}" if name == "requirements" else name for name in Seen._fields))


def _rows(rows: Mapping[int, Row]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    return ((task_id, _peek(row)) for task_id, row in rows.items())


def _told(seen: Seen | None) -> str:
    if seen is None:
        return "none"
    return f"{seen.state}({seen.reason or ''} claim {seen.claim_no} attempts {seen.attempts} crashes {seen.crashes})"
