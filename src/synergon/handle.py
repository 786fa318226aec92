"""The handle of an enqueued task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from synergon.engine import Engine
    from synergon.explain.explanation import Explanation
    from synergon.model.task_records import TaskRecord
    from synergon.model.tasks import Insertion
    from synergon.task import TaskType

Value = TypeVar("Value")


class Handle(Generic[Value]):
    """One stored task: its id, and nothing that could become outdated."""

    __slots__ = ("_engine", "_is_ours", "_task_type", "created", "id")

    def __init__(
        self,
        engine: Engine,
        task_id: int,
        *,
        created: bool = True,
        task_type: TaskType[..., ..., Any, Value] | None = None,
        is_ours: bool = False,
    ) -> None:
        self.id = task_id
        self.created = created
        """Whether a new task was stored. False if a live task held the unique key: this is a handle of that task."""
        self._engine = engine
        self._task_type = task_type
        self._is_ours = is_ours  # this engine has enqueued it, so its end is announced unasked

    @classmethod
    def of(cls, engine: Engine, inserted: Insertion, task_type: TaskType[..., ..., Any, Value] | None) -> Handle[Value]:
        """The handle of an insertion. If it was not newly created, another engine may have enqueued the task."""
        created = inserted.created
        return cls(engine, inserted.id, created=created, task_type=task_type, is_ours=created)

    def __repr__(self) -> str:
        return f"<Handle of task {self.id}>"

    async def status(self) -> TaskRecord:
        """The current record of the task. Raises TaskNotFound if it does not exist."""
        return await self._engine.get(self.id)

    async def result(self, timeout: float | None = None) -> Value:
        """Wait for the end of the task, and return the result of the task function.

        Raises TaskFailed or TaskCancelled if the task did not succeed, TaskDeleted if it was deleted or its history was
        pruned, and ResultTimeout after `timeout` seconds (the task continues).
        """
        results = self._engine.results
        value: Value = results.decode(await results.wait(self.id, timeout, is_ours=self._is_ours), self._task_type)
        return value

    async def cancel(self, why: str | None = None) -> bool:
        """Cancel the task in any state. False if it had ended already."""
        return await self._engine.cancel(self.id, why)

    async def explain(self) -> Explanation:
        """Explain why the task waits, node by node, how it runs, or how it ended."""
        return await self._engine.explain(self.id)

    def result_sync(self, timeout: float | None = None) -> Value:
        """`result` for code without an event loop."""
        return self._engine.sync_bridge.call(lambda: self.result(timeout))

    def status_sync(self) -> TaskRecord:
        """`status` for code without an event loop."""
        return self._engine.sync_bridge.call(self.status)

    def explain_sync(self) -> Explanation:
        """`explain` for code without an event loop."""
        return self._engine.sync_bridge.call(self.explain)

    def cancel_sync(self, why: str | None = None) -> bool:
        """`cancel` for code without an event loop."""
        return self._engine.sync_bridge.call(lambda: self.cancel(why))
