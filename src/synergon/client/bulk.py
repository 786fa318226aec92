"""Operations on all tasks that match a filter, page by page.

Pages go from the newest id down. So a task that is retried, runs and ends again meanwhile is not visited twice, and a
task that is enqueued meanwhile is not visited at all. Each page is one transaction; the whole operation is one entry in
the audit, which is written before the first page and gets its outcome after the last one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from synergon.client.control import current_operator
from synergon.errors import OptionError, StoreError
from synergon.model.lifecycle import FINAL, LIVE, State
from synergon.model.operator_actions import NewAction, Verb
from synergon.model.task_records import TaskQuery
from synergon.model.tasks import Reprioritizing, Rescheduling
from synergon.stores.base import Store

if TYPE_CHECKING:
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.model.tasks import Moved

PAGE: Final = 500
"""How many tasks one transaction changes at most."""

OnPage = Callable[[Sequence["Moved"]], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkOperation:
    """What is done to each task."""

    verb: Verb
    participle: str
    """For messages: `task 7 was ...`."""
    advice: str
    """For the message when a task is in the wrong state."""
    apply: Callable[[Store, Sequence[int]], Awaitable[list[Moved]]]
    allowed_states: frozenset[State]
    """The states in which the operation is allowed."""
    default_states: frozenset[State]
    """The states of the tasks that are selected if the filter names none."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """What the audit records beside the filter: the reason, the new priority, ..."""

    def check_states(self, states: frozenset[State] | None) -> frozenset[State]:
        """The states of the tasks to select. OptionError if the operation is not allowed in one of the given ones."""
        for state in sorted(states or ()):
            if state not in self.allowed_states:
                allowed = ", ".join(sorted(self.allowed_states))
                raise OptionError(f"a task that is {state} cannot be {self.participle}; state takes {allowed}")
        return states or self.default_states


def cancel(why: str | None) -> BulkOperation:
    """Cancel tasks; live ones unless the filter names states."""
    return BulkOperation(
        verb="cancel_all",
        participle="cancelled",
        advice="it has ended",
        apply=lambda store, ids: store.cancel(ids, why),
        allowed_states=LIVE,
        default_states=LIVE,
        details={"why": why},
    )


def retry() -> BulkOperation:
    """Run ended tasks again; failed ones unless the filter names states."""
    return BulkOperation(
        verb="retry_all",
        participle="retried",
        advice="only an ended task can be",
        apply=lambda store, ids: store.retry(ids),
        allowed_states=FINAL,
        default_states=frozenset({State.FAILED}),
    )


def delete() -> BulkOperation:
    """Delete tasks; ended ones unless the filter names states."""
    return BulkOperation(
        verb="delete_all",
        participle="deleted",
        advice="cancel it first",
        apply=lambda store, ids: store.delete(ids),
        allowed_states=frozenset(State) - {State.RUNNING},
        default_states=FINAL,
    )


def reschedule(delay: int | None, run_at: int | None) -> BulkOperation:
    """Change when scheduled and ready tasks are due."""
    states = frozenset({State.SCHEDULED, State.READY})
    return BulkOperation(
        verb="reschedule_all",
        participle="rescheduled",
        advice="only a scheduled or ready task can be",
        apply=lambda store, ids: store.reschedule(
            [Rescheduling(id=task_id, delay=delay, run_at=run_at) for task_id in ids]
        ),
        allowed_states=states,
        default_states=states,
        details={"delay": delay, "run_at": run_at},
    )


def set_priority(priority: int) -> BulkOperation:
    """Change the priority of tasks that have not started."""
    states = LIVE - {State.RUNNING}
    return BulkOperation(
        verb="set_priority_all",
        participle="given another priority",
        advice="only a task that waits can be",
        apply=lambda store, ids: store.set_priority([Reprioritizing(id=task_id, priority=priority) for task_id in ids]),
        allowed_states=states,
        default_states=states,
        details={"priority": priority},
    )


class Bulk:
    """The part of an engine that changes all tasks that match a filter. Changes are announced."""

    def __init__(self, connection: Connection, announcer: Announcer) -> None:
        self._connection = connection
        self._announcer = announcer

    @property
    def _store(self) -> Store:
        return self._connection.store

    async def apply(self, operation: BulkOperation, query: TaskQuery, on_page: OnPage) -> int:
        """Apply the operation to all tasks that match. Returns how many were changed."""
        query = _of_page(operation, query)
        action = await self._store.act(
            NewAction(
                verb=operation.verb,
                subject=shown_filter(query),
                value=dict(operation.details),
                who=current_operator(),
            )
        )
        count = 0
        try:
            while True:
                page = await self._store.list_tasks(query)
                if page.tasks:
                    moves = await operation.apply(self._store, [task.id for task in page])
                    count += sum(moved.done for moved in moves)
                    self.announce(moves)
                    on_page(moves)
                if page.next is None:
                    break
                query = msgspec.structs.replace(query, before=page.next)
        except BaseException as error:
            ended = f"stopped by {type(error).__name__} after {_tasks(count)}"
            with suppress(StoreError):  # the database may be away; the entry then remains open
                await self._store.action_done(action.id, ended)
            raise
        await self._store.action_done(action.id, f"{_tasks(count)} {operation.participle}")
        return count

    async def count(self, operation: BulkOperation, query: TaskQuery) -> int:
        """How many tasks match now."""
        query = _of_page(operation, query)
        if query.tag is query.key is query.title is None:  # the other filters have exact counts
            return sum(
                number
                for (queue, kind, state), number in (await self._store.counts()).items()
                if query.kind in (None, kind) and query.queue in (None, queue) and state in (query.states or State)
            )
        total = 0
        while True:
            page = await self._store.list_tasks(query)
            total += len(page)
            if page.next is None:
                return total
            query = msgspec.structs.replace(query, before=page.next)

    def announce(self, moves: Sequence[Moved]) -> None:
        """Announce the results to the nodes and engines that are concerned."""
        self._announcer.announce_moves(moves)
        later = Counter(moved.kind for moved in moves if moved.kind is not None and moved.state is State.SCHEDULED)
        if later:
            self._announcer.announce_later(later)


def _of_page(operation: BulkOperation, query: TaskQuery) -> TaskQuery:
    return msgspec.structs.replace(query, states=operation.check_states(query.states), limit=PAGE)


def shown_filter(query: TaskQuery) -> str:
    """A filter as text, for the audit."""
    words = [("state", ",".join(sorted(query.states or ())))]
    words += [(name, getattr(query, name)) for name in ("kind", "queue", "tag", "key", "title")]
    return " ".join(f"{name}={value}" for name, value in words if value)


def _tasks(count: int) -> str:
    return f"{count} task{'' if count == 1 else 's'}"
