"""Schedules at run time: `engine.schedules`."""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Unpack

from msgspec.structs import replace

from synergon.client.control import current_operator
from synergon.client.must_await import must_await
from synergon.client.schedule_declarations import ScheduleOptions, definition_of, fields_of, new_task
from synergon.errors import OptionError, ScheduleExists, ScheduleNotFound
from synergon.model.lifecycle import State
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
    from synergon.client.announcer import Announcer
    from synergon.client.connection import Connection
    from synergon.client.control import Control
    from synergon.client.ports import Ports
    from synergon.client.sync_bridge import SyncBridge
    from synergon.explain.explanation import ScheduleExplanation
    from synergon.handle import Handle
    from synergon.model.nodes import NodeRecord
    from synergon.stores.base import Store
    from synergon.task import Call


Records = list[ScheduleRecord]
Occurrences = list[Occurrence]
"""Named here, because `list` is a method below."""


class Schedules:
    """The schedules of a store: those that code declares, and those that are made at run time, which code never
    touches."""

    name_in_code: Final = "engine.schedules"

    def __init__(
        self,
        connection: Connection,
        announcer: Announcer,
        control: Control,
        sync_bridge: SyncBridge,
        ports: Ports,
        logger: logging.Logger,
        handle_of: Callable[[FiredTask], Handle[Any]],
    ) -> None:
        self._connection = connection
        self._announcer = announcer
        self._control = control
        self._sync_bridge = sync_bridge
        self._ports = ports
        self.logger = logger
        self._handle_of = handle_of

    @property
    def _store(self) -> Store:
        return self._connection.store

    # ------------------------------------------------------------ change

    @must_await(sync="create_sync")
    async def create(self, name: str, call: Call[Any], **options: Unpack[ScheduleOptions]) -> ScheduleRecord:
        """Store a schedule, with the options of `engine.schedule`. ScheduleExists if there is one with this name."""
        await self._connection.declare()
        definition = definition_of(name, call, options, self._ports.clock.wall())
        created = await self._store.create_schedule(definition)
        if created is None:
            raise ScheduleExists(f"there is a schedule {name!r} already; update it, or choose another name", name)
        self._announcer.announce_change()
        return created

    async def update(
        self, name: str, call: Call[Any] | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleRecord:
        """Change a schedule that was made at run time: its call, or the options that are given. Its next occurrence is
        computed anew; the grid of an interval remains if neither `every` nor `starts_at` changes."""
        where = f"schedule {name!r}"
        changes = fields_of(options, where, self._ports.clock.wall())
        if call is not None:
            changes["task"] = new_task(call, where)
        if not changes:
            raise OptionError(f"{where}: nothing to change; give a call or options")
        changed = await self._store.update_schedule(check_name(name, "a schedule's name"), changes)
        if changed is None:
            raise await self._not_found(name)
        self._announcer.announce_change()
        return changed

    async def pause(self, name: str) -> bool:
        """Pause a schedule: its occurrences are skipped until `resume`, even after restarts. False if it was paused."""
        return await self._act("pause_schedule", name) == "paused"

    async def resume(self, name: str) -> bool:
        """Resume a schedule from its next occurrence on. False if it was not paused."""
        return await self._act("resume_schedule", name) == "resumed"

    async def delete(self, name: str) -> None:
        """Delete a schedule; its tasks remain. One that code declares returns when a worker with that code starts."""
        await self._act("delete_schedule", name)

    @must_await(sync="run_now_sync")
    async def run_now(self, name: str) -> Handle[Any] | None:
        """Create one more task, also during a pause. None if `overlap` is "skip" and the task before has not ended, or
        if a live task holds its unique key."""
        run = await self.run_once(name)
        return None if run.task is None else self._handle_of(run.task)

    async def run_once(self, name: str) -> ScheduleRun:
        """`run_now`, with the reason if it creates no task."""
        run = await self._store.run_schedule(check_name(name, "a schedule's name"), current_operator())
        if run is None:
            raise await self._not_found(name)
        if run.task is not None:
            self._announce(run.task)
        return run

    def _announce(self, task: FiredTask) -> None:
        if task.state is State.READY:
            self._announcer.announce_ready({(task.kind, None, KIND_DEFAULT): 1})
        if task.expires or task.state is State.SCHEDULED:
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
        """All schedules, by name."""
        return await self._with_states(await self._store.schedules())

    async def get(self, name: str) -> ScheduleRecord:
        """One schedule; ScheduleNotFound if there is none."""
        check_name(name, "a schedule's name")
        found = [record for record in await self._store.schedules() if record.name == name]
        if not found:
            raise await self._not_found(name)
        return (await self._with_states(found))[0]

    async def upcoming(self, number: int = 10, *, name: str | None = None) -> Occurrences:
        """The next occurrences of all active schedules, or of one, in order. A paused or undeclared schedule has
        none."""
        check_count(number, "the number of occurrences")
        records = await self.list() if name is None else [await self.get(name)]
        active = [one for one in records if one.state == "active" and (one.cron is not None or one.every is not None)]
        merged = heapq.merge(*(_occurrences(record) for record in active))  # one that cannot be read has neither
        return [Occurrence(name=of, at=to_datetime(at)) for at, of in itertools.islice(merged, number)]

    async def explain(self, name: str) -> ScheduleExplanation:
        """Explain when the schedule fires next, and why it did not fire or its tasks do not run."""
        from synergon.explain.schedule_explanation import explain_schedule

        record = await self.get(name)
        return await explain_schedule(self._store, record)

    async def _with_states(self, records: Iterable[ScheduleRecord]) -> Records:
        """The records with the state `undeclared` where no live node declares what only code may fire."""
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

    # ------------------------------------------------------------ without an event loop

    def create_sync(self, name: str, call: Call[Any], **options: Unpack[ScheduleOptions]) -> ScheduleRecord:
        """`create` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.create(name, call, **options))

    def update_sync(
        self, name: str, call: Call[Any] | None = None, **options: Unpack[ScheduleOptions]
    ) -> ScheduleRecord:
        """`update` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.update(name, call, **options))

    def pause_sync(self, name: str) -> bool:
        """`pause` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.pause(name))

    def resume_sync(self, name: str) -> bool:
        """`resume` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.resume(name))

    def delete_sync(self, name: str) -> None:
        """`delete` for code without an event loop."""
        self._sync_bridge.call(lambda: self.delete(name))

    def run_now_sync(self, name: str) -> Handle[Any] | None:
        """`run_now` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.run_now(name))

    def list_sync(self) -> Records:
        """`list` for code without an event loop."""
        return self._sync_bridge.call(self.list)

    def get_sync(self, name: str) -> ScheduleRecord:
        """`get` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.get(name))

    def upcoming_sync(self, number: int = 10, *, name: str | None = None) -> Occurrences:
        """`upcoming` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.upcoming(number, name=name))

    def explain_sync(self, name: str) -> ScheduleExplanation:
        """`explain` for code without an event loop."""
        return self._sync_bridge.call(lambda: self.explain(name))


def _declared(nodes: Iterable[NodeRecord]) -> set[str]:
    """The schedules that live nodes declare."""
    live = [read_status(bytes(node.published)) for node in nodes if node.lease_remaining > 0]
    return {name for status in live for name in status.schedules}


def _occurrences(record: ScheduleRecord) -> Iterator[tuple[int, str]]:
    """The occurrences of an active schedule from its next one on, each with its name."""
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
