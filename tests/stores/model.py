"""What a store does, in plain dicts and lists: slow, and obviously right. The stores are compared with it.

Time stands still here: a task is due at once, or far in the future.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from synergon.errors import KeyConflict, LeaseLost
from synergon.lifecycle import FINAL, Reason, State, is_legal
from synergon.policies import CRASH_LIMIT
from synergon.records import (
    Cancelled,
    ClaimRequest,
    Crashed,
    Failed,
    HandedBack,
    NewTask,
    Outcome,
    Report,
    Retrying,
    Settlement,
    Snoozed,
    Succeeded,
)


@dataclass
class ModelTask:
    """One task."""

    id: int
    task: NewTask
    state: State
    priority: int
    reason: Reason | None = None
    claim_no: int = 0
    attempts: int = 0
    crashes: int = 0
    node_id: str | None = None
    cancel_requested: bool = False
    overdue: bool = False
    result: bytes | None = None
    progress: float | None = None
    errors: list[str] = field(default_factory=list)
    verdict: State | None = None
    """What the present claim number was told when it was settled."""
    has_moved_since: bool = False
    """Whether anybody else has moved it after that."""

    def move(self, state: State) -> None:
        """Go to another state, which must be legal."""
        assert state is self.state or is_legal(self.state, state), f"{self.state} -> {state}"
        self.state = state
        self.has_moved_since = True


class Model:
    """All tasks, queues and nodes."""

    def __init__(self) -> None:
        self.tasks: dict[int, ModelTask] = {}
        self.queues: dict[str, bool] = {}
        """Whether each is paused."""
        self.nodes: set[str] = set()

    # ------------------------------------------------------------ questions

    def holder(self, kind: str, key: str | None) -> ModelTask | None:
        """The live task with this key."""
        for task in self.tasks.values():
            if key is not None and (task.task.kind, task.task.key) == (kind, key) and task.state not in FINAL:
                return task
        return None

    def running(self, task_id: int, claim_no: int) -> ModelTask | None:
        """The task, if this claim owns it."""
        task = self.tasks.get(task_id)
        return task if task and task.claim_no == claim_no and task.state is State.RUNNING else None

    def of_node(self, node_id: str) -> list[ModelTask]:
        """What runs there."""
        return [task for task in self.tasks.values() if task.node_id == node_id and task.state is State.RUNNING]

    def counts(self) -> dict[tuple[str, str, State], int]:
        """Numbers by queue, kind and state."""
        return dict(Counter((task.task.queue, task.task.kind, task.state) for task in self.tasks.values()))

    # ------------------------------------------------------------ tasks come in

    def insert(self, tasks: Sequence[NewTask], ids: Sequence[int]) -> list[tuple[int, bool, State]]:
        """Store all or none; `ids` are for those that are created, in order."""
        self._refuse_conflicts(tasks)
        fresh = iter(ids)
        return [self._insert(task, task.on_conflict, fresh) for task in tasks]

    def _insert(self, task: NewTask, on_conflict: str, ids: object) -> tuple[int, bool, State]:
        holder = self.holder(task.kind, task.key)
        self.queues.setdefault(task.queue, False) if holder is None or on_conflict == "replace" else None
        state = State.SCHEDULED if task.delay else State.READY
        if holder is None:
            task_id = next(ids)  # type: ignore[call-overload]
            self.tasks[task_id] = ModelTask(task_id, task, state, task.priority)
            return task_id, True, state
        if on_conflict == "replace":
            holder.move(state)
            holder.task, holder.priority = task, task.priority
            holder.attempts, holder.crashes, holder.errors, holder.progress = 0, 0, [], None
        return holder.id, False, holder.state

    def _refuse_conflicts(self, tasks: Sequence[NewTask]) -> None:
        seen: list[tuple[str, str | None]] = []
        for task in tasks:
            holder = self.holder(task.kind, task.key)
            is_taken = holder is not None or (task.key is not None and (task.kind, task.key) in seen)
            is_running = holder is not None and holder.state is State.RUNNING
            if (task.on_conflict == "raise" and is_taken) or (task.on_conflict == "replace" and is_running):
                raise KeyConflict("taken", holder.id if holder else 0)
            seen.append((task.kind, task.key))
