"""Ways to break the engine on purpose: what the auditor must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from synergon.client.results import Waiters
from synergon.errors import StoreUnavailable
from synergon.model.claims import Claim, ClaimRequest
from synergon.model.lifecycle import State
from synergon.model.outcomes import FencedOutcome, HandedBack, Outcome, Retrying, Snoozed, Verdict
from synergon.model.task_statistics import Numbers
from synergon.node.attempts.attempt import Attempt
from synergon.node.attempts.completer import Completer
from synergon.node.attempts.runner import Runner
from synergon.node.claims import scheduler
from synergon.node.claims.admission import Admission
from synergon.node.claims.scheduler import Scheduler
from synergon.node.liveness.lease import Lease
from synergon.node.liveness.lost_claims import LostClaims
from synergon.node.liveness.membership import Membership
from synergon.node.liveness.reaper import Reaper
from synergon.node.statistics_writer import StatisticsWriter
from synergon.stores.base import LeaseKeeper
from synergon.stores.base_store import BaseStore, writes
from synergon.stores.memory import claim
from synergon.stores.memory.ready_groups import ReadyGroup
from synergon.stores.memory.row import Row
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables
from synergon.stores.rows import FinalTask, FinishedClaim, LiveTask
from synergon.stores.rules import attempts, due_tasks, finish, node_capacity, reap, suspects
from synergon.stores.rules.attempts import NodeNames

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


def finish_without_fence(patch: Patch) -> None:
    """Any claim's outcome is taken, as long as the task runs."""

    async def none_at_once(
        session: Session, outcomes: Sequence[FencedOutcome], applied: dict[int, int]
    ) -> dict[int, Verdict]:
        return {}

    async def of_any_claim(
        session: Session, outcomes: Sequence[FencedOutcome], applied: dict[int, int]
    ) -> list[LiveTask]:
        running = await session.tasks.running({entry.id for entry in outcomes})
        applied |= {entry.id: index for index, entry in enumerate(outcomes) if entry.id in running}
        return list(running.values())

    patch.setattr(finish, "_succeed", none_at_once)
    patch.setattr(finish, "_current_tasks", of_any_claim)


def reaper_without_recheck(patch: Patch) -> None:
    """A node that was late when the reaper looked is taken for dead, although it may have renewed since."""

    def gone(self: Reaper) -> list[str]:
        return [node.id for node in self._nodes if node.lease_remaining < 4 * self._beat_seconds]

    patch.setattr(Reaper, "_gone", gone)


def lease_renewed_too_late(patch: Patch) -> None:
    """The node counts its lease from the answer, and believes in it to the very end and beyond."""

    async def renew(self: Lease, keeper: LeaseKeeper) -> bool:
        try:
            is_known = await keeper.renew(self._node_id, round(self._seconds * 1_000_000))
        except StoreUnavailable:
            return self._clock.monotonic() < self._valid_until + self._seconds
        self._valid_until = self._clock.monotonic() + self._seconds
        return is_known

    patch.setattr(Lease, "_renew", renew)


def node_never_fenced(patch: Patch) -> None:
    """A node that has lost its lease lets its bodies run on."""

    def rejoin_only(self: Membership, node_id: str) -> None:
        self._rejoin_task = self._loop.create_task(self.join())

    patch.setattr(Membership, "lease_lost", rejoin_only)


def cancel_forgotten_at_retry(patch: Patch) -> None:
    """A body that fails after somebody wanted it cancelled is tried again."""
    apply = finish._apply

    async def forget(session: Session, task: LiveTask, entry: FencedOutcome, names: NodeNames) -> State:
        if isinstance(entry.outcome, Retrying):
            session.tables.rows[task.id].cancel_requested = False
            task = replace(task, cancel_requested=False)
        return await apply(session, task, entry, names)

    patch.setattr(finish, "_apply", forget)


def slot_freed_at_timeout(patch: Patch) -> None:
    """A thread that runs past its deadline is not waited for."""
    in_thread = Runner._in_thread

    async def impatient(self: Runner, attempt: Attempt, positional: list[Any], arguments: dict[str, Any]) -> Any:
        body = asyncio.ensure_future(in_thread(self, attempt, positional, arguments))
        await asyncio.wait([body], timeout=attempt.timeout)
        return body.result() if body.done() else (None, TimeoutError())

    patch.setattr(Runner, "_in_thread", impatient)


def threads_not_counted_by_claims(patch: Patch) -> None:
    """A claim takes more plain functions than threads are free."""
    patch.setattr(ClaimRequest, "free_units", lambda self, name: 1000)


def threads_forgotten(patch: Patch) -> None:
    """A node that had no thread for a task does not look for it when one is free."""
    patch.setattr(scheduler, "_short_of_units", lambda request, taken: set[str]())


def claim_from_paused_queues(patch: Patch) -> None:
    """Pausing a queue has no effect."""

    def all_groups(tables: Tables, kind: str, queues: frozenset[str] | None) -> Iterator[ReadyGroup]:
        yield from tables.ready.ready_groups(kind)

    patch.setattr(claim, "open_groups", all_groups)


def attempt_charged_at_hand_back(patch: Patch) -> None:
    """A shutdown costs the task an attempt."""
    charge = finish._charge

    async def charge_more(session: Session, task: LiveTask, outcome: Outcome, ended_attempts: Any) -> None:
        if not isinstance(outcome, HandedBack):
            await charge(session, task, outcome, ended_attempts)

    patch.setattr(finish, "_charge", charge_more)


def outcomes_dropped_in_outages(patch: Patch) -> None:
    """The completer tries once."""

    async def write_once(self: Completer, batch: list[FencedOutcome]) -> list[Verdict]:
        try:
            return await self._store.finish(batch)
        except StoreUnavailable:
            return [Verdict(fenced.id, None) for fenced in batch]

    patch.setattr(Completer, "_write", write_once)


def settlement_applied_twice(patch: Patch) -> None:
    """An outcome that is repeated because its answer was lost counts again."""
    finished = finish._finished

    async def again(session: Session, outcomes: Sequence[FencedOutcome]) -> dict[tuple[int, int], FinishedClaim]:
        claims = await finished(session, outcomes)
        for entry in outcomes:
            if (entry.id, entry.claim_no) in claims:
                row = session.tables.rows[entry.id]
                row.attempts += {State.READY: -1, State.SCHEDULED: 1}.get(row.state, 0)
        return claims

    patch.setattr(finish, "_finished", again)


def attempt_of_a_dead_node_not_noted(patch: Patch) -> None:
    """The reaper does not note the attempts that it takes back."""

    async def note_nothing(session: Session, task: LiveTask, error: Any, ended_attempts: Any) -> None:
        await session.tasks.charge(task.id, attempts=1, errors=[error])

    patch.setattr(reap, "give_back_attempt", note_nothing)


def earlier_attempts_forgotten(patch: Patch) -> None:
    """Only the last attempt is remembered."""
    patch.setattr(attempts, "_last", lambda entries: entries[-1:])


def success_forgotten_at_retry(patch: Patch) -> None:
    """A task that has succeeded and is retried does not remember its success."""

    async def keep_nothing(session: Session, task: FinalTask) -> None:
        """Notes nothing."""

    patch.setattr(attempts, "keep_success", keep_nothing)


def crash_not_charged(patch: Patch) -> None:
    """The death of a child costs nothing, so a poisonous task kills children for ever."""

    async def charge_nothing(session: Session, task: LiveTask, error: Any, ended_attempts: Any) -> None:
        await session.tasks.charge(task.id, attempts=1)

    patch.setattr(finish, "charge_crash", charge_nothing)


def death_of_a_node_charged(patch: Patch) -> None:
    """The reaper charges a crash to all that a dead node ran."""
    patch.setattr(reap, "give_back_attempt", finish.charge_crash)


def suspects_not_marked(patch: Patch) -> None:
    """The tasks of a dead node run among the others again."""

    async def count_only(session: Session, task: LiveTask) -> int:
        await session.tasks.set_owner_deaths(task.id, task.owner_deaths + 1)
        return task.owner_deaths + 1

    patch.setattr(suspects, "note_owner_death", count_only)


def suspects_never_cleared(patch: Patch) -> None:
    """Once a suspect, always a suspect."""

    async def keep(session: Session, task: LiveTask, outcome: Outcome) -> None:
        return None

    patch.setattr(suspects, "note_outcome", keep)


def suspects_cleared_at_hand_back(patch: Patch) -> None:
    """A suspect that was handed back before it ran is taken for harmless."""
    note = suspects.note_outcome

    async def clear(session: Session, task: LiveTask, outcome: Outcome) -> None:
        await note(session, task, Snoozed(delay=0) if isinstance(outcome, HandedBack) else outcome)

    patch.setattr(suspects, "note_outcome", clear)


def suspects_before_others(patch: Patch) -> None:
    """Suspects keep their place among the others of their priority."""
    patch.setattr(node_capacity, "is_suspect_text", lambda text: False)


def suspects_not_isolated(patch: Patch) -> None:
    """A suspect runs in the process of its node."""

    def prepare_openly(self: Runner, claim: Claim) -> Attempt:
        return prepare(self, replace(claim, requirements=""))

    prepare = Runner._prepare
    patch.setattr(Runner, "_prepare", prepare_openly)


def max_running_ignored(patch: Patch) -> None:
    """A node claims as many of a kind as it has slots."""
    patch.setattr(Admission, "free_count", lambda self, kind: self._ledger.free)


def leftovers_forgotten(patch: Patch) -> None:
    """What there was no room for is found by the next sweep at the earliest."""
    patch.setattr(Scheduler, "_note_leftovers", lambda self, request, claims, taken: None)


def waiters_told_once(patch: Patch) -> None:
    """Whoever waits looks once, and is told only of what this node has ended itself."""

    async def rest(self: Waiters) -> None:
        await self._wake.wait()

    patch.setattr(Waiters, "_wait_for_wake_up", rest)


def unknown_claims_kept(patch: Patch) -> None:
    """A claim whose answer was lost is forgotten."""
    patch.setattr(LostClaims, "claim_failed", lambda self: None)


def closed_after_joining_again(patch: Patch) -> None:
    """A node that has lost its lease joins again and claims nothing ever after."""
    patch.setattr(Scheduler, "reopen", lambda self: None)


def youngest_first(patch: Patch) -> None:
    """Among equals the last one in is the first one out."""

    def pop_last(self: ReadyGroup, head: tuple[int, int, int]) -> Row:
        if len(self._fifo) > 1 and self._counts(self._fifo[-1], self._fifo_priority) and not self._heap:
            return self._fifo.pop()
        return pop(self, head)

    pop = ReadyGroup.pop
    patch.setattr(ReadyGroup, "pop", pop_last)


def due_made_ready_late(patch: Patch) -> None:
    """What is due becomes ready a quarter of a minute later."""
    wake = due_tasks.wake

    async def too_late(session: Session, limit: int) -> Any:
        session.now -= 15_000_000
        return await wake(session, limit)

    patch.setattr(BaseStore, "wake", writes(too_late))


def reap_by_a_fast_clock(patch: Patch) -> None:
    """The reaper's statement is early by half a lease."""
    reap_dead = reap.reap

    async def too_early(session: Session, gone: Any, limit: int) -> Any:
        session.now += 3_000_000
        return await reap_dead(session, gone, limit)

    patch.setattr(BaseStore, "reap", writes(too_early))


def statistics_of_minutes_added_twice(patch: Patch) -> None:
    """Each row has the numbers of all minutes before, too."""

    def from_the_beginning(self: Numbers, earlier: Numbers) -> Numbers:
        return self

    patch.setattr(Numbers, "without", from_the_beginning)


def last_statistics_forgotten(patch: Patch) -> None:
    """A node that stops in order does not write what it has counted last."""

    async def forget(self: StatisticsWriter) -> None:
        pass

    patch.setattr(StatisticsWriter, "close", forget)


MUTANTS: Final[tuple[Mutant, ...]] = (
    finish_without_fence,
    reaper_without_recheck,
    lease_renewed_too_late,
    node_never_fenced,
    cancel_forgotten_at_retry,
    slot_freed_at_timeout,
    threads_not_counted_by_claims,
    threads_forgotten,
    claim_from_paused_queues,
    attempt_charged_at_hand_back,
    outcomes_dropped_in_outages,
    settlement_applied_twice,
    attempt_of_a_dead_node_not_noted,
    earlier_attempts_forgotten,
    success_forgotten_at_retry,
    crash_not_charged,
    death_of_a_node_charged,
    suspects_not_marked,
    suspects_never_cleared,
    suspects_cleared_at_hand_back,
    suspects_before_others,
    suspects_not_isolated,
    max_running_ignored,
    leftovers_forgotten,
    waiters_told_once,
    unknown_claims_kept,
    closed_after_joining_again,
    youngest_first,
    due_made_ready_late,
    reap_by_a_fast_clock,
    statistics_of_minutes_added_twice,
    last_statistics_forgotten,
)
