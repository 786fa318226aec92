"""Ways to break dependencies on purpose: what the auditor of worlds with dependencies must notice."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from tests.simulation.mutants import Mutant, Patch

from synergon.model.lifecycle import FINAL, State
from synergon.model.outcomes import FencedOutcome
from synergon.stores.memory.dependency_rows import DependencyRows
from synergon.stores.memory.session import Session
from synergon.stores.rows import ChangedTask, DependencyRow, FinalTask, LiveTask
from synergon.stores.rules import dependencies, ends, finish
from synergon.stores.rules.attempts import NodeNames
from synergon.stores.session import Moves


def closed_by_any_outcome(patch: Patch) -> None:
    """An attempt that ends closes the dependencies on its task, even if the task has not ended."""
    apply = finish._apply

    async def close_early(session: Session, task: LiveTask, entry: FencedOutcome, names: NodeNames) -> State:
        state = await apply(session, task, entry, names)
        session.touched.ended.setdefault(task.id, State.SUCCEEDED.value)
        return state

    patch.setattr(finish, "_apply", close_early)


def released_by_the_first_end(patch: Patch) -> None:
    """A task starts when one of those that it needs has ended."""

    async def release_all(self: DependencyRows, ids: Sequence[int]) -> list[ChangedTask]:
        for task_id in ids:
            for row in await self.of([task_id]):
                self._tables.dependencies.set_end(row, State.SUCCEEDED.value)
        return await release(self, ids)

    release = DependencyRows.release
    patch.setattr(DependencyRows, "release", release_all)


def not_closed(patch: Patch) -> None:
    """The end of a task is not noted in the dependencies on it."""

    async def close_nothing(self: DependencyRows, ended: Mapping[int, str]) -> None:
        """Leaves them open."""

    patch.setattr(DependencyRows, "close", close_nothing)


def looked_at_before_the_close(patch: Patch) -> None:
    """Which dependents have no open dependency is asked before those on the ended task are closed."""
    close, release = DependencyRows.close, DependencyRows.release
    late: dict[int, str] = {}

    async def close_later(self: DependencyRows, ended: Mapping[int, str]) -> None:
        late.update(ended)

    async def release_first(self: DependencyRows, ids: Sequence[int]) -> list[ChangedTask]:
        released = await release(self, ids)
        await close(self, dict(late))
        late.clear()
        return released

    patch.setattr(DependencyRows, "close", close_later)
    patch.setattr(DependencyRows, "release", release_first)


def needed_not_marked(patch: Patch) -> None:
    """A stored task does not know that others need it from now on."""

    async def mark_nothing(self: DependencyRows, ids: Collection[int]) -> None:
        """Marks none."""

    patch.setattr(DependencyRows, "mark_needed", mark_nothing)


def failure_taken_for_success(patch: Patch) -> None:
    """Dependents run, however the task has ended."""
    close = DependencyRows.close

    async def close_well(self: DependencyRows, ended: Mapping[int, str]) -> None:
        await close(self, dict.fromkeys(ended, State.SUCCEEDED.value))

    follow = dependencies.follow

    async def follow_blindly(session: Session) -> Moves:
        session.touched.ended = dict.fromkeys(session.touched.ended, State.SUCCEEDED.value)
        return await follow(session)

    patch.setattr(DependencyRows, "close", close_well)
    patch.setattr(dependencies, "follow", follow_blindly)


def cancel_of_one_generation_only(patch: Patch) -> None:
    """A cancelled dependent does not cancel what depends on it."""

    async def only_these(self: DependencyRows, ids: Collection[int]) -> list[int]:
        return list(ids)

    async def cancel_quietly(session: Session, tasks: Mapping[int, LiveTask]) -> Moves:
        dependent = [task for task in tasks.values() if task.is_dependent]
        moves = await cancel(session, tasks)
        for task in dependent:
            session.touched.ended.pop(task.id, None)
        return moves

    cancel = dependencies._cancel
    patch.setattr(DependencyRows, "doomed", only_these)
    patch.setattr(dependencies, "_cancel", cancel_quietly)


def deleted_tasks_awaited(patch: Patch) -> None:
    """What needs a deleted task waits for it."""
    delete = ends.delete

    async def delete_quietly(session: Session, task: LiveTask) -> None:
        await delete(session, task)
        session.touched.ended.pop(task.id, None)

    patch.setattr(ends, "delete", delete_quietly)


def retry_of_one_generation_only(patch: Patch) -> None:
    """The tasks that were cancelled because of a retried one stay cancelled."""

    async def bring_back_none(session: Session, ids: Collection[int]) -> dict[int, FinalTask]:
        return {}

    patch.setattr(dependencies, "cancelled_with", bring_back_none)


def retry_without_reopening(patch: Patch) -> None:
    """What needs a retried task does not wait for it."""

    async def reopen_nothing(session: Session, ids: Collection[int]) -> None:
        """Reopens none."""

    patch.setattr(dependencies, "reopen", reopen_nothing)


def first_end_counts_for_ever(patch: Patch) -> None:
    """A task that has been cancelled does not learn how a retried one ends, and stays cancelled because of it."""
    reopen = DependencyRows.reopen

    async def reopen_live(self: DependencyRows, rows: Sequence[DependencyRow]) -> None:
        await reopen(self, [row for row in rows if self._tables.rows[row.task_id].state not in FINAL])

    patch.setattr(DependencyRows, "reopen", reopen_live)


def retried_task_does_not_wait(patch: Patch) -> None:
    """A task that ended while it waited, and is retried, runs before the tasks that it needs."""

    async def wait_for_none(session: Session, ids: Collection[int]) -> Moves:
        return {}

    patch.setattr(dependencies, "wait_again", wait_for_none)


def unsettled_for_ever(patch: Patch) -> None:
    """What needed a failed task when it was stored is never cancelled."""

    async def settle_nothing(session: Any, limit: int) -> None:
        """Settles none."""

    patch.setattr(dependencies, "settle", settle_nothing)


DEPENDENCY_MUTANTS: Final[tuple[Mutant, ...]] = (
    closed_by_any_outcome,
    released_by_the_first_end,
    not_closed,
    looked_at_before_the_close,
    needed_not_marked,
    failure_taken_for_success,
    cancel_of_one_generation_only,
    deleted_tasks_awaited,
    retry_of_one_generation_only,
    retry_without_reopening,
    first_end_counts_for_ever,
    retried_task_does_not_wait,
    unsettled_for_ever,
)
