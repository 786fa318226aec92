"""Live tasks and the history: implements a part of `stores.task_primitives.TaskRows` with the statements of
`sql/task_rows.sql` and `sql/operations.sql`. How tasks are inserted, ended and pruned differs between the stores, for
speed and because PostgreSQL has concurrent writers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from synergon.model.attempts import AttemptRecord
from synergon.model.lifecycle import State
from synergon.model.outcomes import ErrorRecord, Progress
from synergon.model.record import Record
from synergon.model.task_records import TaskRecord
from synergon.stores import task_primitives as port
from synergon.stores.rows import ChangedTask, FinalTask, FinishedClaim, KeyHolder, KeyName, LiveTask
from synergon.stores.sql_rows.named_statements import SqlRows


class TaskRows(SqlRows, port.TaskRows):
    """Implements `stores.task_primitives.TaskRows`, without inserts, ends and pruning. In PostgreSQL a read locks the
    rows, by ascending id, except in `records` and `finished_claims`."""

    __slots__ = ()

    async def running(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {task.id: task for task in await self._sql.typed(LiveTask, "running_tasks", list(ids))}

    async def live(self, ids: Iterable[int]) -> dict[int, LiveTask]:
        return {task.id: task for task in await self._sql.typed(LiveTask, "live_tasks", list(ids))}

    async def final(self, ids: Iterable[int]) -> dict[int, FinalTask]:
        return {task.id: task for task in await self._sql.typed(FinalTask, "final_tasks", list(ids))}

    async def records(self, ids: Sequence[int]) -> dict[int, TaskRecord]:
        return {
            record.id: record
            for name in ("get_live", "get_final")
            for record in await self._sql.typed(TaskRecord, name, list(ids))
        }

    async def finished_claims(self, ids: Iterable[int]) -> dict[int, FinishedClaim]:
        return {claim.id: claim for claim in await self._sql.typed(FinishedClaim, "finished_claims", list(ids))}

    async def release(
        self,
        task: LiveTask,
        *,
        delay: int | None = None,
        limit_key: str | None = None,
        leaves_key_queue: bool = False,
        protected_for: int = 0,
        by_owner: bool = False,
    ) -> State:
        given = (task.id, delay, by_owner, limit_key, max(protected_for, 0), leaves_key_queue)
        return State(await self._sql.value("release", *given))

    async def charge(
        self,
        task_id: int,
        *,
        attempts: int = 0,
        crashes: int = 0,
        errors: Sequence[ErrorRecord] | None = None,
        ended_attempts: Sequence[AttemptRecord] | None = None,
    ) -> None:
        await self._sql.run("charge", task_id, _json(errors), attempts, crashes, _json(ended_attempts))

    async def set_server_failures(self, task_id: int, server_failures: int) -> None:
        await self._sql.run("set_server_failures", task_id, server_failures)

    async def set_owner_deaths(self, task_id: int, owner_deaths: int) -> None:
        await self._sql.run("set_owner_deaths", task_id, owner_deaths)

    async def set_errors(self, task_id: int, errors: Sequence[ErrorRecord]) -> None:
        await self._sql.run("set_errors", task_id, _json(errors))

    async def set_ended_attempts(self, task_id: int, ended_attempts: Sequence[AttemptRecord]) -> None:
        await self._sql.run("set_ended_attempts", task_id, _json(ended_attempts))

    async def set_requirements(self, task_id: int, requirements: str) -> None:
        await self._sql.run("set_requirements", task_id, requirements)

    async def report(self, task_id: int, claim_no: int, progress: Progress | None, *, is_overdue: bool) -> bool:
        return await self._sql.run("report", task_id, claim_no, _json(progress), is_overdue) == 1

    async def request_cancel(self, task_id: int) -> None:
        await self._sql.run("request_cancel", task_id)

    async def extend_timeout(self, task_id: int, extra: int, at_most: int) -> None:
        await self._sql.run("extend_timeout", task_id, extra, at_most)

    async def set_meta(self, task: LiveTask | FinalTask, meta: bytes) -> None:
        name = "set_live_meta" if isinstance(task, LiveTask) else "set_final_meta"
        await self._sql.run(name, task.id, meta.decode())

    async def keeps(self) -> list[int]:
        return await self._sql.ids("keeps")

    async def key_holder(self, kind: str, key: str) -> KeyHolder | None:
        found = await self._sql.typed(KeyHolder, "key_holder", kind, key)
        return found[0] if found else None

    async def key_holders(self, names: Collection[KeyName]) -> dict[KeyName, KeyHolder]:
        found = await self._sql.typed(KeyHolder, "key_holders", *self._sql.pairs(names))
        return {(holder.kind, holder.key): holder for holder in found}

    async def reschedule(self, task_id: int, run_at: int | None, delay: int | None) -> ChangedTask | None:
        moment = None if run_at is None else self._sql.moment(run_at)
        changed = await self._sql.typed(ChangedTask, "reschedule", task_id, moment, delay)
        return changed[0] if changed else None

    async def set_priority(self, task_id: int, priority: int) -> ChangedTask | None:
        changed = await self._sql.typed(ChangedTask, "set_priority", task_id, priority)
        return changed[0] if changed else None

    async def expired(self, limit: int) -> list[LiveTask]:
        return await self._sql.typed(LiveTask, "expired", limit)

    async def make_due_ready(self, limit: int) -> list[ChangedTask]:
        return await self._sql.typed(ChangedTask, "make_due_ready", limit)

    async def next_due_in(self) -> int | None:
        next_in: int | None = await self._sql.value("next_due_in")
        return None if next_in is None else max(next_in, 0)

    async def orphans(self, dead: Collection[str], limit: int) -> list[LiveTask]:
        return await self._sql.typed(LiveTask, "orphans", list(dead), limit)


def _json(value: Record | Sequence[Record] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
