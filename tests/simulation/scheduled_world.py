"""A world with schedules: some that the code of its processes declares, some that were made at run time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from tests.simulation import task_functions as bodies
from tests.simulation.auditor import LEASING, Auditor, Seen
from tests.simulation.chaos import Chaos
from tests.simulation.process import Process
from tests.simulation.task_functions import Script
from tests.simulation.waiting_auditor import Patience
from tests.simulation.workload import Workload
from tests.simulation.world import World, at_once

from synergon.model.lifecycle import FINAL
from synergon.model.operator_actions import NewAction
from synergon.model.schedules import NewSchedule, ScheduleRecord
from synergon.options.overrides import Overrides
from synergon.stores.memory.session import Session
from synergon.stores.memory.tables import Tables
from synergon.stores.rows import ScheduleRow
from synergon.stores.rules import schedules as rule

SECOND: Final = 1_000_000
LASTING_SECONDS: Final = 20
"""How long schedules fire; then the tasks of the world can come to an end."""
CHANGED: Final = "made-skip"
"""The schedule whose definition operators change."""
NEGLECT_SECONDS: Final = 3.0
"""How late a schedule may be while a process is well that has to fire it, if no hint or sweep is needed for that."""


def schedules(start: int) -> dict[str, NewSchedule]:
    """All schedules of this world, by name. Those with `coded` in their names are declared."""
    found: dict[str, NewSchedule] = {}
    for name, every, options in (
        ("coded-all", 0.7, {"missed": "all", "overlap": "queue"}),
        ("coded-one", 0.5, {"jitter": SECOND // 3}),
        ("coded-new", 1.1, {"missed": "skip", "overlap": "queue"}),
        ("made-skip", 0.9, {"missed": "skip", "jitter": SECOND // 2}),
        ("made-all", 0.4, {"missed": "all", "overlap": "queue", "jitter": SECOND // 5}),
    ):
        seconds = 1.3 if options.get("overlap", "skip") == "skip" else 0.05
        call = bodies.engine.call("polite", script=Script(seconds=seconds))
        found[name] = NewSchedule(
            name=name,
            task=call.to_new_task(),
            every=round(every * SECOND),
            starts_at=start + SECOND,
            ends_at=start + LASTING_SECONDS * SECOND,
            **options,
        )
    return found


class ScheduledWorld(World):
    """The same faults, and every occurrence creates at most one task through all of them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"scheduled {seed}"))
        self.schedules: dict[str, NewSchedule] = {}

    def make_auditor(self) -> Auditor:
        self.schedules = schedules(self.clock.wall())
        return ScheduleAuditor(self, self.tables)

    def populate(self) -> None:
        for name, schedule in self.schedules.items():
            if name.startswith("made"):
                at_once(self.store.create_schedule(schedule))
        super().populate()

    def schedules_of(self, process: Process) -> Mapping[str, NewSchedule]:
        """Old code, which every second process has, does not know the newest schedule."""
        is_old = process.pid % 2 == 0
        return {
            name: schedule
            for name, schedule in self.schedules.items()
            if name.startswith("coded") and not (is_old and name == "coded-new")
        }

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [SchedulePatience(self).run(), self.live_through(Chaos(self), ScheduleWorkload(self))]

    async def live_through(self, chaos: Chaos, workload: Workload) -> None:
        """See that every occurrence was counted, before everything ends."""
        await asyncio.gather(chaos.run(), workload.run())
        while any(self._goes_on(row) for row in self.tables.schedules.values()):  # noqa: ASYNC110  virtual time
            await asyncio.sleep(1)
        assert isinstance(self.auditor, ScheduleAuditor)
        self.auditor.check_all()
        await super().live_through(chaos, workload)

    def _goes_on(self, row: ScheduleRow) -> bool:
        """Whether some process will fire it again."""
        is_fired = not row.is_declared or any(row.name in process.schedules for process in self.processes)
        return row.next_at is not None and is_fired

    def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        if name != "update_schedule":
            return super()._call(name, args)
        return self.store._transact(_update_earlier, self.chances.choice((0, 0, 0, 1, 2)) * SECOND, *args)


async def _update_earlier(session: Session, back: int, name: str, changes: dict[str, Any]) -> ScheduleRecord | None:
    """Change a schedule by a clock that was set back, as that of PostgreSQL may be. The memory store's never is."""
    session.now -= back
    return await rule.update(session, name, changes)


class ScheduleWorkload(Workload):
    """Operators pause, resume, change and run schedules, too. In the end none is paused."""

    async def run(self) -> None:
        operating = asyncio.ensure_future(self._operate())
        await super().run()
        await operating
        for name in self._names():
            self._world.apply(self._world.processes[0], "act", (_action("resume_schedule", name),))

    def _names(self) -> list[str]:
        return sorted(self._world.tables.schedules)

    async def _operate(self) -> None:
        world, chances = self._world, self._chances
        pause_seconds = chances.choice((1.0, 3.0, 100.0))
        while world.loop.time() < LASTING_SECONDS:
            await asyncio.sleep(chances.expovariate(1 / pause_seconds))
            if not world.processes or not self._names():
                continue
            process, name = chances.choice(world.processes), chances.choice(self._names())
            match chances.choice(("pause", "resume", "resume", "run", "change", "change", "change")):
                case "run":
                    process.start(self._try(partial(_run, name), process))
                case "change":
                    process.start(self._try(partial(_change, chances.choice((SECOND // 3, SECOND // 2))), process))
                case verb:
                    process.start(self._try(partial(_act, _action(f"{verb}_schedule", name)), process))


async def _run(name: str, process: Process) -> None:
    await process.store.run_schedule(name, "ada")


async def _change(jitter: int, process: Process) -> None:
    await process.store.update_schedule(CHANGED, {"jitter": jitter})


async def _act(action: NewAction, process: Process) -> None:
    await process.store.act(action)


def _action(verb: Any, name: str) -> NewAction:
    return NewAction(verb=verb, subject=name, who="ada")


class SchedulePatience(Patience):
    """A schedule that is due is fired by a process that is well."""

    def _look(self) -> None:
        super()._look()
        world, now = self._world, self._world.loop.time()
        for row in world.tables.schedules.values():
            if row.due_at is None:
                continue
            late = (world.auditor.now - row.due_at) / SECOND
            for process in world.processes:
                well_for = now - max(process.troubled_until, world.clock_stepped_at)
                is_its = not row.is_declared or row.name in process.schedules
                if is_its and process.is_healthy and min(well_for - process.settings.lease, late) > NEGLECT_SECONDS:
                    world.fail(f"schedule {row.name} is due for {late:.1f} s although {process} is well")


class ScheduleAuditor(Auditor):
    """Each occurrence creates at most one task, on its grid and not before its time, or is counted."""

    def __init__(self, world: World, tables: Tables) -> None:
        super().__init__(world, tables)
        self._first: dict[str, int] = {}
        """The first occurrence of each schedule."""
        self._created: dict[tuple[str, int], int] = {}
        """The task of each occurrence."""
        self._last: dict[str, int] = {}
        """The task that each schedule created last. An operator may retry an earlier one at any time."""
        self._paused_schedules: set[str] = set()

    def applied(self, process: Process, name: str, args: tuple[Any, ...], answer: Any, *, is_done: bool) -> None:
        if name in ("declare_schedules", "now"):
            return
        if name == "act" and is_done:
            self._note_pause(args[0])
        for row in self._tables.schedules.values():
            if row.next_at is not None:
                self._first.setdefault(row.name, _definition(row).starts_at or 0)
        before = dict(self.seen)
        super().applied(process, name, args, answer, is_done=is_done)
        if name in ("fire", "run_schedule") and name not in LEASING:
            self._check_created(process, name, before)
            self._check_numbers()

    def _note_pause(self, action: NewAction) -> None:
        if action.verb == "pause_schedule":
            self._paused_schedules.add(action.subject)
        elif action.verb == "resume_schedule":
            self._paused_schedules.discard(action.subject)

    def _check_move(self, name: str, task_id: int, old: Seen | None, new: Seen | None) -> None:
        is_new = name in ("fire", "run_schedule") and old is None
        super()._check_move("insert" if is_new else name, task_id, old, new)

    def _check_created(self, process: Process, name: str, before: dict[int, Seen]) -> None:
        new = sorted(self.seen.keys() - before.keys())
        live = {task_id for task_id, seen in before.items() if seen.state not in FINAL}
        several: dict[str, int] = {}
        for task_id in new:
            schedule, moment = self._schedule_of(task_id), self._moment_of(task_id)
            definition = _definition(self._tables.schedules[schedule])
            several[schedule] = several.get(schedule, 0) + 1
            last, self._last[schedule] = self._last.get(schedule), task_id
            if definition.overlap == "skip" and (last in live or several[schedule] > 1):
                self.fail(task_id, f"schedule {schedule} has created it although the task before has not ended")
            if name == "run_schedule":
                continue
            if (schedule, moment) in self._created:
                self.fail(task_id, f"task {self._created[schedule, moment]} is of this occurrence of {schedule}, too")
            self._created[schedule, moment] = task_id
            self._check_moment(task_id, definition, moment)
            if schedule in self._paused_schedules:
                self.fail(task_id, f"schedule {schedule} is paused")
            if schedule.startswith("coded") and schedule not in process.schedules:
                self.fail(task_id, f"{process} does not declare schedule {schedule}")
            if definition.missed == "skip" and several[schedule] > 1:
                self.fail(task_id, f"schedule {schedule} was to skip what it has missed")

    def _check_moment(self, task_id: int, definition: NewSchedule, moment: int) -> None:
        assert definition.every is not None
        assert definition.ends_at is not None
        if (moment - self._first[definition.name]) % definition.every or moment > definition.ends_at:
            self.fail(task_id, f"{moment} is no occurrence of {definition.name}")
        if moment > self.now:
            self.fail(task_id, f"schedule {definition.name} has fired too early")

    def _check_numbers(self) -> None:
        for row in self._tables.schedules.values():
            definition = _definition(row)
            assert definition.every is not None
            created = sum(name == row.name for name, _ in self._created)
            if created != row.fired:
                self._world.fail(f"schedule {row.name} counts {row.fired} and has created {created}")
            if row.next_at is None:
                continue
            passed = (row.next_at - self._first[row.name]) // definition.every
            if row.fired + row.missed + row.skipped != passed:
                self._world.fail(f"schedule {row.name} has lost an occurrence: {passed} have passed, it knows of {row}")

    def check_all(self) -> None:
        """At the end every occurrence is accounted for."""
        for row in self._tables.schedules.values():
            definition = _definition(row)
            assert definition.every is not None
            assert definition.ends_at is not None
            total = (definition.ends_at - self._first[row.name]) // definition.every + 1
            if row.next_at is not None:
                continue  # no process is left that declares it
            early = total - (row.fired + row.missed + row.skipped)
            # A declared one is stored when the first process starts: what lies before is none of its occurrences.
            if early < 0 or (early > 0 and row.name.startswith("made")):
                self._world.fail(f"schedule {row.name} has {total} occurrences and knows of {row}")
            if definition.missed == "all" and row.missed:
                self._world.fail(f"schedule {row.name} has missed {row.missed}, and all were to run")

    def _schedule_of(self, task_id: int) -> str:
        return self._overrides(task_id).schedule or ""

    def _moment_of(self, task_id: int) -> int:
        return self._overrides(task_id).scheduled_for or 0

    def _overrides(self, task_id: int) -> Overrides:
        row = self._tables.rows.get(task_id)
        return msgspec.json.decode((row and row.task.overrides) or b"{}", type=Overrides)


def _definition(row: ScheduleRow) -> NewSchedule:
    return msgspec.json.decode(row.definition, type=NewSchedule)
