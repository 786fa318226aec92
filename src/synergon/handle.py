"""The handle of an enqueued task."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from synergon.async_calls import Bridge, sync
from synergon.errors import OptionError, ResultTimeout
from synergon.model.dependencies import Need
from synergon.options.dependency_options import TaskReference
from synergon.options.durations import Duration, seconds
from synergon.options.store_urls import shown

if TYPE_CHECKING:
    from synergon.engine import Engine
    from synergon.explain.explanation import Explanation
    from synergon.model.task_records import TaskRecord
    from synergon.model.tasks import Insertion
    from synergon.task import TaskType

Value = TypeVar("Value", covariant=True)
Found = TypeVar("Found")

UPDATE_SECONDS: Final = 0.5
"""How often `updates` reads the task."""


class Handle(TaskReference, Generic[Value]):
    """A stored task. The object has its id, and no state that could become outdated."""

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
        self.id: int = task_id
        self.created: bool = created
        """Whether a new task was stored. False if a live task held the unique key: this is a handle of that task."""
        self._engine = engine
        self._task_type = task_type
        self._is_ours = is_ours  # this engine has enqueued it, so its end is announced unasked

    @classmethod
    def of(cls, engine: Engine, inserted: Insertion, task_type: TaskType[..., ..., Any, Found] | None) -> Handle[Found]:
        """The handle of an inserted task. If the insert returned a task that existed before, another engine may have
        enqueued that task."""
        created = inserted.created
        return Handle(engine, inserted.id, created=created, task_type=task_type, is_ours=created)

    def __repr__(self) -> str:
        return f"<Handle of task {self.id}>"

    @property
    def sync_bridge(self) -> Bridge:
        """The bridge that runs the `*_sync` methods of this class for code without an event loop."""
        return self._engine.sync_bridge

    def _need_of(self, url: str | None) -> Need:
        """The dependency on this task, for a task that names it in `after`. Raises OptionError if that task is stored
        in another database, at `url`."""
        if url is not None and self._engine.settings.url != url:
            raise OptionError(
                f"after names task {self.id} of {shown(self._engine.settings.url)}, but the task is stored in "
                f"{shown(url)}; a task can only wait for tasks of its own database"
            )
        return Need(task_id=self.id)

    @property
    def kind(self) -> str | None:
        """The kind of the task. None if it is not known here."""
        return None if self._task_type is None else self._task_type.kind

    async def status(self) -> TaskRecord:
        """The current record of the task. Raises TaskNotFound if it does not exist."""
        return await self._engine.get(self.id)

    status_sync: Final = sync(status)

    async def result(self, timeout: float | None = None) -> Value:
        """Wait for the end of the task, and return the result of the task function.

        Raises TaskFailed or TaskCancelled if the task did not succeed, TaskDeleted if it was deleted or its history was
        pruned, and ResultTimeout after `timeout` seconds (the task continues).
        """
        results = self._engine._results
        value: Value = results.decode(await results.wait(self.id, timeout, is_ours=self._is_ours), self._task_type)
        return value

    result_sync: Final = sync(result)

    async def updates(self, every: Duration = UPDATE_SECONDS) -> AsyncGenerator[TaskRecord, None]:
        """Yield the record of the task now, and whenever its state, attempt or progress has changed, up to its end:
        `async for record in handle.updates()`. Reads the task every half second, or as often as `every` says; the end
        is reported at once. Raises TaskNotFound or TaskDeleted if the task does not exist or is deleted."""
        interval = seconds(every, "every", positive=True)
        before = None
        while True:
            record = await self.status()
            now = (record.state, record.attempts, record.progress)
            if now != before:
                before = now
                yield record
            if record.state.is_final:
                return
            with suppress(ResultTimeout):
                await self._engine._results.wait(self.id, interval, is_ours=self._is_ours)

    async def cancel(self, why: str | None = None) -> bool:
        """Cancel the task in any state. False if it had ended already."""
        return await self._engine.cancel(self.id, why)

    cancel_sync: Final = sync(cancel)

    async def explain(self) -> Explanation:
        """Explain why the task waits, node by node, how it runs, or how it ended."""
        return await self._engine.explain(self.id)

    explain_sync: Final = sync(explain)
