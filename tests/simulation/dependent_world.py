"""A world whose tasks depend on each other."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from tests.simulation.auditor import READING, Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.process import Process
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload
from tests.simulation.world import World

from synergon.model.dependencies import DELETED, Need
from synergon.model.lifecycle import FINAL, Reason, State
from synergon.model.tasks import Insertion, NewTask
from synergon.stores.memory.tables import Tables

NOT_STARTED = (State.SCHEDULED, State.READY, State.WAITING)


class DependentWorld(World):
    """The same faults, and dependencies that hold through all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"dependent {seed}"))

    def make_auditor(self) -> Auditor:
        return DependencyAuditor(self, self.tables)

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [Patience(self).run(), self.live_through(Chaos(self), DependentWorkload(self))]


class DependentWorkload(Workload):
    """Each insert stores a few tasks, which depend on each other and on stored tasks."""

    async def _enqueue(self, process: Process) -> None:
        chances = self._chances
        tasks: list[NewTask] = []
        for index in range(chances.choice((1, 2, 3, 5))):
            needs = [Need(step=step) for step in range(index) if chances.random() < 0.5]
            if chances.random() < 0.3 and self._world.auditor.seen:
                needs.append(Need(task_id=self._some_task(State.RUNNING)))
            if_fails = chances.choice(("cancel", "cancel", "run"))
            tasks.append(replace(self._new_call().to_new_task(), after=tuple(needs), if_dependency_fails=if_fails))
        first = await process.enqueue_tasks(tasks)
        if chances.random() < 0.3:
            await process.wait_for(first)

    def _options(self) -> dict[str, Any]:
        """Without keys: what a key prevents is another world's matter."""
        return {name: value for name, value in super()._options().items() if name not in ("key", "on_conflict")}

    async def _retry(self, process: Process) -> None:
        """Mostly tasks that did not succeed. Sometimes all that have cancelled another one, one after the other."""
        auditor = self._world.auditor
        assert isinstance(auditor, DependencyAuditor)
        cancelled = auditor.cancelled()
        if cancelled and self._chances.random() < 0.5:
            for needs_id in auditor.forbidding(self._chances.choice(cancelled)):
                await process.retry(needs_id)
        else:
            await process.retry(self._some_task(self._chances.choice((State.FAILED, State.CANCELLED))))


@dataclass(slots=True)
class Dependency:
    """What the auditor knows of one dependency."""

    needs_id: int
    if_fails: str
    ended_as: str | None = None
    """How the needed task ended. None as long as it has not."""
    is_forgiven: bool = False
    """Whether an operator has retried the dependent in spite of it."""

    @property
    def forbids(self) -> bool:
        """Whether the dependent must not run because of it."""
        is_bad = self.ended_as not in (None, State.SUCCEEDED)
        return is_bad and self.if_fails == "cancel" and not self.is_forgiven


class DependencyAuditor(Auditor):
    """After any statement, a task waits if and only if a task that it needs has not ended. What must not run without a
    task that did not succeed is cancelled with it, and comes back with it."""

    def __init__(self, world: World, tables: Tables) -> None:
        super().__init__(world, tables)
        self._dependencies: dict[int, list[Dependency]] = {}

    def applied(self, process: Process, name: str, args: tuple[Any, ...], answer: Any, *, is_done: bool) -> None:
        before = self.seen
        super().applied(process, name, args, answer, is_done=is_done)
        if name in READING or not is_done:
            return
        if name == "insert":
            self._note_new(args[0], answer)
        revived = {task_id for task_id, old in before.items() if old.state in FINAL and self._is_live(task_id)}
        self._note_retries(revived)
        self._note_ends()
        for task_id, dependencies in self._dependencies.items():
            self._check(name, task_id, before.get(task_id))
            if task_id in self.seen and self.seen[task_id].state in FINAL:
                for dependency in dependencies:
                    dependency.is_forgiven = False
            is_cancelled = task_id in self.seen and self.seen[task_id].reason is Reason.DEPENDENCY
            if is_cancelled and revived.issuperset(self.forbidding(task_id)):
                self.fail(task_id, f"{name} did not bring it back with all tasks that it needs")

    def cancelled(self) -> list[int]:
        """The tasks that are cancelled because of several others."""
        return [
            task_id
            for task_id in self._dependencies
            if task_id in self.seen
            and self.seen[task_id].reason is Reason.DEPENDENCY
            and len(self.forbidding(task_id)) > 1
        ]

    def forbidding(self, task_id: int) -> list[int]:
        """The tasks because of which this one must not run."""
        return [dependency.needs_id for dependency in self._dependencies[task_id] if dependency.forbids]

    def _look(self) -> dict[int, Seen | None]:
        """What a dependency has moved is not the statement's own doing."""
        changed = super()._look()
        return {task_id: old for task_id, old in changed.items() if not self._is_follow_up(task_id, old)}

    def _is_follow_up(self, task_id: int, old: Seen | None) -> bool:
        new = self.seen.get(task_id)
        if old is None or new is None or (old.claim_no, old.attempts) != (new.claim_no, new.attempts):
            return False
        if new.reason is Reason.DEPENDENCY:
            return old.state in NOT_STARTED
        if new.state is State.WAITING:
            return old.state in NOT_STARTED or old.reason is Reason.DEPENDENCY
        return old.state is State.WAITING and new.state in NOT_STARTED

    def _check_move(self, name: str, task_id: int, old: Seen | None, new: Seen | None) -> None:
        super()._check_move(name, task_id, _as_ready(old), _as_ready(new))

    # ------------------------------------------------------------ what it knows of dependencies

    def _note_new(self, tasks: Sequence[NewTask], inserted: Sequence[Insertion]) -> None:
        for task, entry in zip(tasks, inserted, strict=True):
            ids = [need.task_id if need.step is None else inserted[need.step].id for need in task.after]
            if ids:
                self._dependencies[entry.id] = [Dependency(needs_id or 0, task.if_dependency_fails) for needs_id in ids]

    def _note_retries(self, revived: set[int]) -> None:
        """A retry reopens the dependencies of the tasks that do not run. One that is retried itself, and not with the
        tasks that it needs, runs in spite of them."""
        if not revived:
            return
        for task_id, dependencies in self._dependencies.items():
            if task_id not in self.seen or self.seen[task_id].state is State.RUNNING:
                continue
            for dependency in dependencies:
                if dependency.needs_id in revived:
                    dependency.ended_as = None
                elif task_id in revived:
                    dependency.is_forgiven = dependency.ended_as is not None

    def _note_ends(self) -> None:
        for dependency in (one for many in self._dependencies.values() for one in many if one.ended_as is None):
            needed = self.seen.get(dependency.needs_id)
            if needed is None or needed.state in FINAL:
                dependency.ended_as = DELETED if needed is None else needed.state
                dependency.is_forgiven = False

    def _is_live(self, task_id: int) -> bool:
        return task_id in self.seen and self.seen[task_id].state not in FINAL

    # ------------------------------------------------------------ what it demands

    def _check(self, name: str, task_id: int, old: Seen | None) -> None:
        new = self.seen.get(task_id)
        if new is None:
            return
        dependencies = self._dependencies[task_id]
        is_open = any(dependency.ended_as is None for dependency in dependencies)
        is_forbidden = any(dependency.forbids for dependency in dependencies)
        has_started = old is not None and old.state is State.RUNNING
        if new.state is State.READY and (is_open or is_forbidden) and not has_started:
            self.fail(task_id, f"{name} made it ready, and a task that it needs has not succeeded")
        if new.state is State.WAITING and not is_open:
            self.fail(task_id, f"{name} left it waiting, and all tasks that it needs have ended")
        if new.state is State.WAITING and is_forbidden:
            self.fail(task_id, f"{name} left it waiting, and it can never run")
        if new.reason is Reason.DEPENDENCY and (old is None or old.reason is not new.reason) and not is_forbidden:
            self.fail(task_id, f"{name} cancelled it, and no task that it needs has failed")


def _as_ready(seen: Seen | None) -> Seen | None:
    """A task that waits is one that would be ready without its dependencies."""
    return seen._replace(state=State.READY) if seen is not None and seen.state is State.WAITING else seen
