"""Ways to break schedules on purpose: what the auditor of worlds with schedules must notice."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec.structs import replace
from tests.simulation.mutants import Mutant, Patch

from synergon.model.schedules import NewSchedule
from synergon.node.duties.schedule_alarm import ScheduleAlarm
from synergon.options.timetable import Due, Timetable
from synergon.stores.memory.schedule_rows import ScheduleRows
from synergon.stores.rows import ScheduleRow
from synergon.stores.rules import insert, schedules


def occurrence_not_advanced(patch: Patch) -> None:
    """Now and then the tasks are inserted, and the schedule stays where it is."""
    write = ScheduleRows.write

    async def forgetful(self: ScheduleRows, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        for old_next_at, row in rows:
            if row.fired % 5 == 3:
                kept = replace(row, next_at=old_next_at, due_at=self._tables.schedules[row.name].due_at)
                self._tables.schedules[row.name] = kept
                return len(rows)
        return await write(self, rows)

    patch.setattr(ScheduleRows, "write", forgetful)


def fired_by_an_old_look(patch: Patch) -> None:
    """A node fires what it read in an earlier transaction, and nothing compares that with the row: what is lost if the
    guard is."""
    due, read = ScheduleRows.due, dict[str, ScheduleRow]()

    async def stale(self: ScheduleRows, declared: Collection[str], limit: int) -> list[ScheduleRow]:
        rows = await due(self, declared, limit)
        answer = [read.pop(row.name, row) for row in rows]
        read.update({row.name: row for row in rows})
        return answer

    async def unguarded(self: ScheduleRows, rows: Sequence[tuple[int | None, ScheduleRow]]) -> int:
        self._tables.schedules.update({row.name: row for _, row in rows})
        return len(rows)

    patch.setattr(ScheduleRows, "due", stale)
    patch.setattr(ScheduleRows, "write", unguarded)


def fired_before_it_is_due(patch: Patch) -> None:
    """A schedule fires a second early."""
    awaited = ScheduleRows._awaited

    def early(self: ScheduleRows, declared: Collection[str]) -> list[tuple[int, ScheduleRow]]:
        return [(at - 1_000_000, row) for at, row in awaited(self, declared)]

    patch.setattr(ScheduleRows, "_awaited", early)


def overlap_ignored(patch: Patch) -> None:
    """Whether the task before has ended is not asked."""

    async def none_is_live(self: ScheduleRows, ids: Collection[int]) -> set[int]:
        return set()

    patch.setattr(ScheduleRows, "live_tasks", none_is_live)


def pause_ignored(patch: Patch) -> None:
    """A paused schedule fires."""
    firing = schedules._firing

    def unpaused(
        row: ScheduleRow, definition: NewSchedule, timetable: Timetable, now: int, *, is_running: bool
    ) -> schedules.Firing:
        return firing(replace(row, paused_at=None), definition, timetable, now, is_running=is_running)

    patch.setattr(schedules, "_firing", unpaused)


def declarations_ignored(patch: Patch) -> None:
    """A node fires what its code does not declare."""

    def all_of_them(self: ScheduleRows, declared: Collection[str]) -> list[tuple[int, ScheduleRow]]:
        return [(row.due_at, row) for row in self._tables.schedules.values() if row.due_at is not None]

    patch.setattr(ScheduleRows, "_awaited", all_of_them)


def grid_that_drifts(patch: Patch) -> None:
    """The next occurrence is one interval after the firing."""
    due = Timetable.due

    def from_now(self: Timetable, first: int, now: int, keep: int) -> Due:
        found = due(self, first, now, keep)
        every = self._schedule.every
        return found if found.next_at is None or every is None else found._replace(next_at=now + every)

    patch.setattr(Timetable, "due", from_now)


def missed_not_counted(patch: Patch) -> None:
    """What no node fired in time is forgotten."""
    patch.setattr(schedules, "_missed", lambda row, number, first, now: row)


def skips_not_counted(patch: Patch) -> None:
    """What was skipped is forgotten."""
    patch.setattr(schedules, "_skipped", lambda row, number, first, reason, now: row)


def missed_ones_all_run(patch: Patch) -> None:
    """After an outage everything runs, whatever was wished."""
    patch.setattr(schedules, "_MOST_RUN", dict.fromkeys(("one", "skip", "all"), 1000))


def schedules_looked_at_by_sweeps_only(patch: Patch) -> None:
    """The alarm does not know when the next schedule is due."""

    async def sleepy(self: ScheduleAlarm) -> None:
        await self.fire_due()
        await asyncio.sleep(30)

    patch.setattr(ScheduleAlarm, "step", sleepy)


def tasks_not_inserted_with_the_advance(patch: Patch) -> None:
    """The schedule advances, and the tasks come in a transaction of their own, which a node does not live to see."""
    insert_all = insert.insert
    number = 0

    async def now_and_then(session: Any, tasks: Any) -> Any:
        nonlocal number
        number += 1
        inserted = await insert_all(session, tasks)
        if number % 7 == 0:
            for entry in inserted:
                session.tables.remove(session.tables.rows[entry.id])
        return inserted

    patch.setattr(insert, "insert", now_and_then)


def pending_forgotten_by_a_change(patch: Patch) -> None:
    """A change forgets the occurrence whose moment has passed, and which waits for its jitter."""
    patch.setattr(schedules, "_pending", lambda row, now: None)


def fired_again_after_a_change(patch: Patch) -> None:
    """A change after the clock was set back lets occurrences that have fired come again."""
    patch.setattr(schedules, "_last_counted", lambda row, now: now)


SCHEDULE_MUTANTS: Final[tuple[Mutant, ...]] = (
    occurrence_not_advanced,
    fired_by_an_old_look,
    fired_before_it_is_due,
    overlap_ignored,
    pause_ignored,
    declarations_ignored,
    grid_that_drifts,
    missed_not_counted,
    skips_not_counted,
    missed_ones_all_run,
    schedules_looked_at_by_sweeps_only,
    tasks_not_inserted_with_the_advance,
    pending_forgotten_by_a_change,
    fired_again_after_a_change,
)
