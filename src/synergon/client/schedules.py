"""Schedules at run time: `engine.schedules`."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Unpack

from msgspec.structs import replace

from synergon.async_calls import must_await, sync
from synergon.client.control import current_operator
from synergon.client.schedule_declarations import ScheduleOptions, definition_of, fields_of, new_task
from synergon.errors import OptionError, ScheduleExists, ScheduleNotFound
from synergon.handle import Handle
from synergon.model.node_status import read_status
from synergon.model.operator_actions import Verb
from synergon.model.record import from_datetime, to_datetime
from synergon.model.requirements import KIND_DEFAULT
from synergon.model.schedules import FiredTask, NewSchedule, Occurrence, ScheduleRecord, ScheduleRun
from synergon.model.tasks import NewTask
from synergon.options.durations import microseconds
from synergon.options.options import check_count, check_name
from synergon.options.timetable import Timetable

if TYPE_CHECKING:
    from synergon.call import Call
    from synergon.engine import Engine
    from synergon.explain.explanation import ScheduleExplanation
    from synergon.model.nodes import NodeRecord
    from synergon.stores.base import Store


Records = list[ScheduleRecord]
Occurrences = list[Occurrence]
"""Named here, because `list` is a method below."""


class Schedules:
    """The schedules of a store: those that code declares, and those that are made at run time. Declarations never
    change the latter."""

    _name_in_code: Final = "engine.schedules"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection = engine._connection
        self._announcer = engine._announcer
        self._control = engine._control
        self._ports = engine._ports
        self.sync_bridge: Final = engine.sync_bridge
        self.logger: Final = engine.logger

    @property
    def _store(self) -> Store:
        return self._connection.store

    # ------------------------------------------------------------ change

    @must_await(sync="create_sync")
    async def create(self, name: str, call: Call[Any], **options: Unpack[ScheduleOptions]) -> ScheduleRecord:
        """Store a schedule, with the options of `engine.schedule`. Raises ScheduleExists if there is one with this
        name."""
        await self._connection.declare()
        definition = definition_of(name, call, options, self._ports.clock.wall())
        created = await self._store.create_schedule(definition)
        if created is None:
            raise ScheduleExists(f"there is a schedule {name!r} already; update it, or choose another name", name)
        self._announcer.announce_change()
        return created

    create_sync: Final = sync(create)

    async def update(
        self, name: str, call: Call[Any] | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleRecord:
        """Change a schedule that was made at run time: its call, or the options that are given. Its next occurrence is
        computed anew; the grid of an interval remains if neither `every` nor `starts_at` changes."""
        return await self._update(name, call, options)

    update_sync: Final = sync(update)

    async def _update_as_operator(self, name: str, **options: Unpack[ScheduleOptions]) -> ScheduleRecord:
        """`update`, recorded in the audit."""
        return await self._update(name, None, options, current_operator())

    async def _update(
        self, name: str, call: Call[Any] | None, options: ScheduleOptions, who: str | None = None
    ) -> ScheduleRecord:
        where = f"schedule {name!r}"
        changes = fields_of(options, where, self._ports.clock.wall())
        if call is not None:
            changes["task"] = new_task(call, where)
        if not changes:
            raise OptionError(f"{where}: nothing to change; give a call or options")
        changed = await self._store.update_schedule(check_name(name, "a schedule's name"), changes, who)
        if changed is None:
            raise await self._not_found(name)
        self._announcer.announce_change()
        return changed

    async def pause(self, name: str) -> bool:
        """Pause a schedule: its occurrences are skipped until `resume`, even after restarts. False if it was paused."""
        return await self._act("pause_schedule", name) == "paused"

    pause_sync: Final = sync(pause)

    async def resume(self, name: str) -> bool:
        """Resume a schedule from its next occurrence on. False if it was not paused."""
        return await self._act("resume_schedule", name) == "resumed"

    resume_sync: Final = sync(resume)

    async def delete(self, name: str) -> None:
        """Delete a schedule; its tasks remain. A schedule that code declares is stored again when a worker with that
        code starts."""
        await self._act("delete_schedule", name)

    delete_sync: Final = sync(delete)

    @must_await(sync="run_now_sync")
    async def run_now(self, name: str) -> Handle[Any] | None:
        """Create one more task, also during a pause. Returns None if `overlap` is "skip" and the previous task has not
        ended, or if a live task holds the unique key."""
        run = await self.run_once(name)
        if run.task is None:
            return None
        return Handle(self._engine, run.task.id, task_type=self._engine.kinds.get(run.task.kind))

    run_now_sync: Final = sync(run_now)

    async def run_once(self, name: str) -> ScheduleRun:
        """`run_now`, with the reason if it creates no task."""
        run = await self._store.run_schedule(check_name(name, "a schedule's name"), current_operator())
        if run is None:
            raise await self._not_found(name)
        if run.task is not None:
            self._connection.note_accepted((run.task,))
            self._announce(run.task)
        return run

    run_once_sync: Final = sync(run_once)

    def _announce(self, task: FiredTask) -> None:
        if task.needs_claim:
            self._announcer.announce_ready({(task.kind, None, KIND_DEFAULT): 1})
        if task.needs_alarm:
            self._announcer.announce_later([task.kind])

    async def _act(self, verb: Verb, name: str) -> str | None:
        action = await self._control.act(verb, check_name(name, "a schedule's name"))
        if action.is_rejected:
            raise await self._not_found(name)
        return action.outcome

    async def _not_found(self, name: str) -> ScheduleNotFound:
        import difflib

        known = [record.name for record in await self._store.schedules()]
        close = difflib.get_close_matches(name, known, n=1)
        advice = f"; did you mean {close[0]!r}?" if close else ""
        return ScheduleNotFound(f"there is no schedule {name!r}{advice}", name)

    # ------------------------------------------------------------ read

    async def list(self) -> Records:
        """All schedules, sorted by name."""
        return await self._with_states(await self._store.schedules())

    list_sync: Final = sync(list)  # noqa: A003  # the method above

    async def get(self, name: str) -> ScheduleRecord:
        """The schedule with this name. Raises ScheduleNotFound if there is none."""
        check_name(name, "a schedule's name")
        found = [record for record in await self._store.schedules() if record.name == name]
        if not found:
            raise await self._not_found(name)
        return (await self._with_states(found))[0]

    get_sync: Final = sync(get)

    async def upcoming(self, number: int = 10, *, name: str | None = None) -> Occurrences:
        """The next occurrences of all active schedules, or of one, in order. A paused or undeclared schedule has
        none."""
        check_count(number, "the number of occurrences")
        records = await self.list() if name is None else [await self.get(name)]
        active = [one for one in records if one.state == "active" and (one.cron is not None or one.every is not None)]
        merged = heapq.merge(*(_occurrences(record) for record in active))  # one that cannot be read has neither
        return [Occurrence(name=of, at=to_datetime(at)) for at, of in itertools.islice(merged, number)]

    upcoming_sync: Final = sync(upcoming)

    async def explain(self, name: str) -> ScheduleExplanation:
        """Explain when the schedule fires next, and why it did not fire or its tasks do not run."""
        from synergon.explain.schedule_explanation import explain_schedule

        record = await self.get(name)
        return await explain_schedule(self._store, record)

    explain_sync: Final = sync(explain)

    async def _with_states(self, records: Iterable[ScheduleRecord]) -> Records:
        """The records. Schedules of code that no live node declares get the state `undeclared`."""
        found = [*records]
        if not any(record.is_declared for record in found):
            return found
        declared = _declared(await self._store.nodes())
        if self._connection.node is not None:  # its status may not be published yet
            declared |= self._connection.node.schedules.declared.keys()
        return [
            replace(record, state="undeclared")
            if record.is_declared and record.state == "active" and record.name not in declared
            else record
            for record in found
        ]


def _declared(nodes: Iterable[NodeRecord]) -> set[str]:
    """The schedules that live nodes declare."""
    live = [read_status(bytes(node.published)) for node in nodes if node.lease_remaining > 0]
    return {name for status in live for name in status.schedules}


def _occurrences(record: ScheduleRecord) -> Iterator[tuple[int, str]]:
    """The occurrences of an active schedule from its next one on, each with the name of the schedule."""
    if record.next_at is None:
        return iter(())
    next_at = from_datetime(record.next_at)
    schedule = NewSchedule(
        name=record.name,
        task=NewTask(kind=record.kind),
        cron=record.cron,
        every=None if record.every is None else microseconds(record.every.total_seconds()),
        tz=record.tz,
        ends_at=None if record.ends_at is None else from_datetime(record.ends_at),
    )
    following = Timetable(schedule, next_at).upcoming(next_at)
    return ((at, record.name) for at in itertools.chain([next_at], following))
