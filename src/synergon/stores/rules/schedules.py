"""Schedules: fires due ones, and stores, changes and reads them.

Firing is one transaction. It advances `next_at` where `next_at` still has its old value, and inserts the tasks. So each
occurrence creates at most one task, however many nodes fire at once, and whenever one of them dies. An occurrence that
creates no task is counted as missed or skipped, with the reason.

Several occurrences may be due at once, after an outage. All but the latest are missed, and `missed` decides how many of
them run. With `overlap="skip"` only the latest of them can run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from synergon.errors import ConfigurationError, OptionError
from synergon.model.operator_actions import REJECTED, NewAction
from synergon.model.record import MOMENTS, READ_ERRORS, is_storable, to_datetime
from synergon.model.schedules import (
    MOST_PAST,
    Fired,
    FiredTask,
    Missed,
    NewSchedule,
    PastOccurrence,
    ScheduleRecord,
    ScheduleRun,
    ScheduleState,
)
from synergon.model.tasks import Insertion, NewTask
from synergon.options.durations import LONGEST_SECONDS, microseconds
from synergon.options.timetable import Timetable, check_timetable
from synergon.policies import HIGHEST_PRIORITY, LOWEST_PRIORITY, MOST_AT_ONCE, MOST_ATTEMPTS
from synergon.stores.contention import Contention
from synergon.stores.rows import ScheduleRow
from synergon.stores.rules import insert
from synergon.stores.rules.fair_shares import LAST_TAG
from synergon.stores.session import Session

MOST_MISSED: Final = 1000
"""The maximum number of missed occurrences that run with `missed="all"`."""
MOST_STEPS: Final = 10
"""The maximum number of steps in which due occurrences are counted when a schedule is resumed or changed."""
BROKEN_PAUSE: Final = 60_000_000
"""If a node cannot read a schedule, it is postponed by this many microseconds. Another node may be able to read it."""
NOT_IN_TIME: Final = "no node fired it in time"
PAUSED: Final = "the schedule is paused"
CHANGED: Final = "the schedule was changed before it was due"
BY_OPERATOR: Final = "an operator has run it"

_MOST_RUN: Final[dict[Missed, int]] = {"one": 1, "skip": 0, "all": MOST_MISSED}
_DEFINITION: Final = msgspec.json.Decoder(NewSchedule)
_UNREADABLE: Final = (*READ_ERRORS, ConfigurationError)
_LONGEST: Final = microseconds(LONGEST_SECONDS)
_RANGES: Final = {
    "priority": (LOWEST_PRIORITY, HIGHEST_PRIORITY),
    "delay": (0, _LONGEST),
    "expires_in": (0, _LONGEST),
    "keep_for": (0, _LONGEST),
    "unique_for": (0, _LONGEST),
    "max_attempts": (1, MOST_ATTEMPTS),
    "units": (1, MOST_AT_ONCE),
    "fair_step": (0, LAST_TAG),
    "fair_tag": (0, 0),
}
"""The ranges of the numbers that an engine writes for a task. With other numbers the database would reject the tasks of
all due schedules."""
MOST_COUNTED: Final = 2**62
"""The largest valid count of occurrences. A larger count in a row is damaged, and would overflow."""


class BadColumn(ValueError):
    """A value in a column of a schedule that no engine writes."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(problem)
        self.column = column


class Firing(NamedTuple):
    """The decision about the due occurrences of one schedule."""

    definition: NewSchedule
    moments: list[int]
    """The occurrences that create a task."""
    row: ScheduleRow
    """The new row of the schedule, without the ids of the created tasks."""


# ---------------------------------------------------------------- firing


async def fire(session: Session, declared: Collection[str], limit: int) -> Fired:
    """Create the tasks of at most `limit` due schedules. Returns the tasks, and when the next schedule is due."""
    rows = await session.schedules.due(declared, limit)
    now = await session.read_clock()
    readable: list[tuple[ScheduleRow, NewSchedule, Timetable]] = []
    written: list[ScheduleRow] = []
    broken: dict[str, tuple[str, str]] = {}
    for row in rows:
        try:
            readable.append((row, *_read(row)))
        except _UNREADABLE as error:  # one bad row harms only itself
            broken[row.name] = _column(error), str(error)
            written.append(replace(row, due_at=now + BROKEN_PAUSE, reason=str(error), reason_at=now))
    before = {row.last_task_id for row, definition, _ in readable if definition.overlap == "skip"} - {None}
    live = await session.schedules.live_tasks([one for one in before if one is not None]) if before else set()
    firings = [_firing(*one, now, is_running=one[0].last_task_id in live) for one in readable]
    tasks = [_occurrence(one.definition, moment) for one in firings for moment in one.moments]
    inserted = await insert.insert(session, tasks) if tasks else []
    fired: list[FiredTask] = []
    start = 0
    for one in firings:
        own = inserted[start : start + len(one.moments)]
        start += len(one.moments)
        written.append(_with_tasks(one, own))
        fired += [_fired_task(one.definition, entry) for entry in own if entry.created]
    await _write(session, rows, written)
    next_at = await session.schedules.next_due(declared)
    next_in = None if next_at is None else max(next_at - now, 0)
    return Fired(tasks=tuple(fired), broken=broken, next_in=next_in)


async def _write(session: Session, old: Sequence[ScheduleRow], new: Sequence[ScheduleRow]) -> None:
    """Write rows that were read in this transaction, guarded by `next_at`."""
    if not new:
        return
    read = {row.name: row.next_at for row in old}
    if await session.schedules.write([(read[row.name], row) for row in new]) != len(new):
        raise Contention("a schedule has changed since it was read")


def _firing(row: ScheduleRow, definition: NewSchedule, timetable: Timetable, now: int, *, is_running: bool) -> Firing:
    """Decide which due occurrences create a task. `is_running` says that the previous task has not ended."""
    first = row.next_at
    assert first is not None, "a schedule that is due has an occurrence"
    keep = _MOST_RUN[definition.missed]
    due = timetable.due(first, now, keep)
    row = _due_at(replace(row, next_at=due.next_at), timetable)
    if row.paused_at is not None:
        number = due.passed + len(due.moments)
        return Firing(definition, [], _skipped(row, number, first, PAUSED, now))
    if not due.moments:
        return Firing(definition, [], _missed(row, due.passed, first, now))
    is_late = timetable.is_missed(due.moments[-1], now)
    missed, on_time = (due.moments, []) if is_late else (due.moments[:-1], due.moments[-1:])
    running = [*(missed[-keep:] if keep else []), *on_time]
    if definition.overlap == "skip":
        running = running[-1:]
    row = _missed(row, due.passed + len(due.moments) - len(running), first, now)
    if running and is_running and definition.overlap == "skip":
        reason = f"task {row.last_task_id} has not ended"
        return Firing(definition, [], _skipped(row, 1, running[0], reason, now))
    return Firing(definition, running, row)


def _missed(row: ScheduleRow, number: int, first: int, now: int) -> ScheduleRow:
    if not number:
        return row
    past = _noted(row.past, PastOccurrence(at=to_datetime(first), outcome="missed", count=number, reason=NOT_IN_TIME))
    return replace(row, missed=row.missed + number, reason=NOT_IN_TIME, reason_at=now, past=past)


def _skipped(row: ScheduleRow, number: int, first: int, reason: str, now: int) -> ScheduleRow:
    return replace(
        row,
        skipped=row.skipped + number,
        skips_in_row=row.skips_in_row + number,
        skipped_since=first if row.skipped_since is None else row.skipped_since,
        reason=reason,
        reason_at=now,
        past=_noted(row.past, PastOccurrence(at=to_datetime(first), outcome="skipped", count=number, reason=reason)),
    )


def _noted(past: tuple[PastOccurrence, ...], entry: PastOccurrence) -> tuple[PastOccurrence, ...]:
    """The latest occurrences, with `entry` added. It is merged into the last one if both created no task, for one
    reason."""
    last = past[-1] if past else None
    if last is not None and entry.task_id is None and (last.outcome, last.reason) == (entry.outcome, entry.reason):
        return *past[:-1], replace(last, count=last.count + entry.count)
    return *past[-MOST_PAST + 1 :], entry


def _with_tasks(firing: Firing, inserted: Sequence[Insertion]) -> ScheduleRow:
    """The row after its tasks were inserted. A task was not inserted if a live task holds its unique key."""
    row = firing.row
    for moment, entry in zip(firing.moments, inserted, strict=True):
        if entry.created:
            past = PastOccurrence(at=to_datetime(moment), outcome="fired", task_id=entry.id)
            row = replace(
                row,
                last_task_id=entry.id,
                last_at=moment,
                fired=row.fired + 1,
                skips_in_row=0,
                skipped_since=None,
                past=_noted(row.past, past),
            )
        else:
            row = _skipped(row, 1, moment, f"task {entry.id} holds its key", moment)
    return row


def _occurrence(definition: NewSchedule, moment: int) -> NewTask:
    """The task of one occurrence, with the name of its schedule and its nominal moment."""
    task = definition.task
    # The JSON of `options.Overrides`, whose other fields the node that runs the task reads.
    overrides = {} if task.overrides is None else msgspec.json.decode(task.overrides)
    overrides |= {"schedule": definition.name, "scheduled_for": moment}
    return replace(task, overrides=msgspec.json.encode(overrides))


def _fired_task(definition: NewSchedule, entry: Insertion) -> FiredTask:
    task = definition.task
    assert entry.state is not None, "a created task has one"
    return FiredTask(
        id=entry.id,
        kind=task.kind,
        queue=task.queue,
        state=entry.state,
        schedule=definition.name,
        expires=task.expires_in is not None,
    )


def _read(row: ScheduleRow) -> tuple[NewSchedule, Timetable]:
    """The definition of a schedule and its timetable. Raises one of `_UNREADABLE` if this node cannot use them."""
    definition = _DEFINITION.decode(row.definition)
    _check(row, definition)
    return definition, Timetable(definition, row.anchor)


def _check(row: ScheduleRow, definition: NewSchedule) -> None:
    """Raise one of `_UNREADABLE` for values that no engine writes: with them the transaction that fires all due
    schedules would fail, or never end."""
    moments = [("anchor", row.anchor), ("created_at", row.created_at), *_moments(row, definition)]
    for name, moment in moments:
        if moment is not None and moment not in MOMENTS:
            column = name if name in row.__struct_fields__ else "definition"
            raise BadColumn(column, f"the moment {name} is out of range: {moment}")
    if definition.every is not None and not 0 < definition.every <= _LONGEST:
        raise ValueError(f"its interval of {definition.every} microseconds is out of range")
    if not 0 <= definition.jitter <= _LONGEST:
        raise ValueError(f"its jitter of {definition.jitter} microseconds is out of range")
    for name in ("fired", "missed", "skipped", "skips_in_row"):
        if getattr(row, name) > MOST_COUNTED:
            raise BadColumn(name, f"the count is out of range: {getattr(row, name)}")
    task = definition.task
    for name, (lowest, highest) in _RANGES.items():
        number = getattr(task, name)
        if number is not None and not lowest <= number <= highest:
            raise ValueError(f"{name} of its task is out of range: {number}")
    if task.after or task.group_id is not None:
        raise ValueError("its task depends on other tasks, or is of a group")
    texts = (task.kind, task.queue, task.key, task.limit_key, task.fair_key, task.title, task.target, *task.tags)
    for text in texts:
        if text is not None and not is_storable(text):
            raise ValueError(f"it has a text that no database stores: {text!r}")
    if task.overrides is not None:
        msgspec.json.decode(task.overrides, type=dict[str, Any])


def _column(error: Exception) -> str:
    """The column that an error is about."""
    return error.column if isinstance(error, BadColumn) else "definition"


# ---------------------------------------------------------------- one more task


async def run(session: Session, name: str, who: str) -> ScheduleRun | None:
    """Create one more task of a schedule, unless its previous task has not ended and `overlap` forbids that, and record
    it in the audit. None if the schedule does not exist."""
    now = await session.read_clock()
    row = (await session.schedules.locked([name])).get(name)
    found = None if row is None else await _run_readable(session, row, now)
    await session.audit.add(NewAction(verb="run_schedule", subject=name, who=who), _run_outcome(found))
    return found


def _run_outcome(found: ScheduleRun | None) -> str:
    if found is not None and found.task is not None:
        return f"created task {found.task.id}"
    return f"{REJECTED}{'no schedule of that name' if found is None else found.reason}"


async def _run_readable(session: Session, row: ScheduleRow, now: int) -> ScheduleRun:
    try:
        definition, _ = _read(row)
    except _UNREADABLE as error:
        return ScheduleRun(task=None, reason=f"{_column(error)} cannot be read: {error}")
    return await _run(session, row, definition, now)


async def _run(session: Session, row: ScheduleRow, definition: NewSchedule, now: int) -> ScheduleRun:
    last = row.last_task_id
    if definition.overlap == "skip" and last is not None and await session.schedules.live_tasks([last]):
        return ScheduleRun(task=None, reason=f"task {last} has not ended")
    (entry,) = await insert.insert(session, [_occurrence(definition, now)])
    if not entry.created:
        return ScheduleRun(task=None, reason=f"task {entry.id} holds its key")
    past = PastOccurrence(at=to_datetime(now), outcome="fired", task_id=entry.id, reason=BY_OPERATOR)
    changed = replace(row, last_task_id=entry.id, skips_in_row=0, skipped_since=None, past=_noted(row.past, past))
    await _write(session, [row], [changed])
    return ScheduleRun(task=_fired_task(definition, entry))


# ---------------------------------------------------------------- definitions


async def declare(session: Session, definitions: Sequence[NewSchedule]) -> list[str]:
    """Store the schedules that code declares, where they differ from the last declaration. Schedules that were made at
    run time are not changed; returns their names."""
    now = await session.read_clock()
    names = sorted(definition.name for definition in definitions)
    known = await session.schedules.locked(names)
    taken: list[str] = []
    for definition in sorted(definitions, key=lambda one: one.name):
        row = known.get(definition.name)
        if row is None:
            if not await session.schedules.add(_new_row(definition, now, is_declared=True)):
                raise Contention(f"another worker declares the schedule {definition.name!r} at this moment")
        elif not row.is_declared:
            taken.append(row.name)
        elif row.definition != msgspec.json.encode(definition):
            await _write(session, [row], [_redefined(row, definition, now)])
    return taken


async def create(session: Session, definition: NewSchedule) -> ScheduleRecord | None:
    """Store a schedule at run time. None if a schedule has this name. Raises `OptionError` if it would never fire."""
    now = await session.read_clock()
    row = _new_row(definition, now, is_declared=False)
    if row.next_at is None:
        raise OptionError(f"schedule {definition.name!r} has no occurrence from now on; check starts_at and ends_at")
    return _record(row) if await session.schedules.add(row) else None


async def update(session: Session, name: str, changes: dict[str, Any], who: str | None = None) -> ScheduleRecord | None:
    """Change fields of a schedule that was made at run time. With `who`, the audit records the change. None if the
    schedule does not exist. Raises `OptionError`, before anything is written, if the fields do not fit each other or
    code declares the schedule."""
    now = await session.read_clock()
    row = (await session.schedules.locked([name])).get(name)
    if row is None:
        return None
    if row.is_declared:
        raise OptionError(f"schedule {name!r} is declared in code; change it there (it can be paused here)")
    try:
        definition, _ = _read(row)
    except _UNREADABLE as error:
        raise OptionError(f"schedule {name!r} cannot be read: {error}; delete it, and create it again") from error
    definition = replace(definition, **changes)
    check_timetable(definition, now)
    changed = _redefined(row, definition, now)
    if changed.next_at is None:
        raise OptionError(f"schedule {name!r} would have no occurrence from now on; check starts_at and ends_at")
    await _write(session, [row], [changed])
    if who is not None:
        action = NewAction(verb="update_schedule", subject=name, value=_plain(changes), who=who)
        await session.audit.add(action, f"changed: {', '.join(changes)}")
    return _record(changed)


def _plain(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes for the audit. A call is replaced by its kind, because its arguments may be secret."""
    return {name: value.kind if isinstance(value, NewTask) else value for name, value in changes.items()}


def _new_row(definition: NewSchedule, now: int, *, is_declared: bool) -> ScheduleRow:
    anchor = now if definition.starts_at is None else definition.starts_at
    timetable = Timetable(definition, anchor)
    next_at = timetable.after(now)
    return ScheduleRow(
        name=definition.name,
        definition=msgspec.json.encode(definition),
        is_declared=is_declared,
        anchor=anchor,
        created_at=now,
        next_at=next_at,
        due_at=None if next_at is None else timetable.due_at(next_at),
    )


def _redefined(row: ScheduleRow, definition: NewSchedule, now: int) -> ScheduleRow:
    """The row with another definition: its next occurrence is computed anew, and a pause remains. Occurrences of the
    old definition that were due and not fired are counted as missed, or in a pause as skipped. An occurrence that waits
    for its jitter remains if the new definition has it too; otherwise it is counted as skipped."""
    row = _without_due(row, now)
    anchor = _anchor(row, definition, now)
    timetable = Timetable(definition, anchor)
    counted = _last_counted(row, now)
    pending = _pending(row, counted)
    if pending is not None and timetable.after(pending - 1) == pending:
        next_at: int | None = pending
    else:
        if pending is not None:
            row = _skipped(row, 1, pending, CHANGED, counted)
        next_at = timetable.after(counted)
    due_at = None if next_at is None else timetable.due_at(next_at)
    return replace(row, definition=msgspec.json.encode(definition), anchor=anchor, next_at=next_at, due_at=due_at)


def _pending(row: ScheduleRow, counted: int) -> int | None:
    """The next occurrence, if it waits for its jitter: its nominal moment is not after `counted`, and it has neither
    fired nor been counted."""
    return row.next_at if row.next_at is not None and row.next_at <= counted else None


def _last_counted(row: ScheduleRow, now: int) -> int:
    """The moment up to which every occurrence has fired or was counted, except one that waits for its jitter. It may be
    later than now if the clock was set back: what has fired or was counted before that does not occur again."""
    return max(now, row.last_at or now, row.reason_at or now)


def _anchor(row: ScheduleRow, definition: NewSchedule, now: int) -> int:
    """The first moment of the interval's grid under another definition. It is unchanged unless the interval or its
    start has changed."""
    try:
        old = _DEFINITION.decode(row.definition)
    except msgspec.MsgspecError:
        old = None
    if old is not None and (old.every, old.starts_at) == (definition.every, definition.starts_at):
        return row.anchor
    return now if definition.starts_at is None else definition.starts_at


def _without_due(row: ScheduleRow, now: int) -> ScheduleRow:
    """The row after its due occurrences were counted: as skipped in a pause, otherwise as missed. The occurrences of an
    interval are computed. Those of a cron expression are counted one by one, the first `MOST_STEPS` * `CHUNK` of them;
    the rest passes uncounted, so that no transaction takes long."""
    try:
        _, timetable = _read(row)
        for _ in range(MOST_STEPS):
            first = row.next_at
            if first is None or timetable.due_at(first) > now:
                return _due_at(row, timetable)
            due = timetable.due(first, now, 0)
            number = due.passed + len(due.moments)
            is_paused = row.paused_at is not None
            row = _skipped(row, number, first, PAUSED, now) if is_paused else _missed(row, number, first, now)
            row = replace(row, next_at=due.next_at)
        if row.next_at is not None:
            row = replace(row, next_at=timetable.first_not_due(row.next_at, now))
        return _due_at(row, timetable)
    except _UNREADABLE:
        return row


def _due_at(row: ScheduleRow, timetable: Timetable) -> ScheduleRow:
    return replace(row, due_at=None if row.next_at is None else timetable.due_at(row.next_at))


# ---------------------------------------------------------------- operator actions and queries


async def pause(session: Session, name: str) -> bool | None:
    """Pause a schedule: its occurrences are skipped. False if it was paused already, None if it does not exist."""
    now = await session.read_clock()
    row = (await session.schedules.locked([name])).get(name)
    if row is None or row.paused_at is not None:
        return None if row is None else False
    await _write(session, [row], [replace(row, paused_at=now)])
    return True


async def resume(session: Session, name: str) -> bool | None:
    """Resume a schedule from its next occurrence on: occurrences during the pause are skipped, even if no node ran
    meanwhile. False if it was not paused, None if it does not exist."""
    now = await session.read_clock()
    row = (await session.schedules.locked([name])).get(name)
    if row is None or row.paused_at is None:
        return None if row is None else False
    await _write(session, [row], [replace(_without_due(row, now), paused_at=None)])
    return True


async def delete(session: Session, name: str) -> bool:
    """Delete a schedule; its tasks remain. False if it does not exist."""
    return await session.schedules.delete(name)


async def schedules(session: Session) -> list[ScheduleRecord]:
    """All schedules, by name."""
    return [_record(row) for row in await session.schedules.all()]


def _record(row: ScheduleRow) -> ScheduleRecord:
    unreadable: tuple[str, ...] = ()
    try:
        definition, _ = _read(row)
        arguments = msgspec.json.decode(definition.task.payload, type=dict[str, Any])
    except _UNREADABLE as error:  # one bad row harms only itself
        unreadable, definition = (_column(error),), NewSchedule(name=row.name, task=NewTask(kind="?"))
        arguments, row = {}, replace(_without_bad_moments(row), reason=f"{unreadable[0]} cannot be read: {error}")
    state: ScheduleState = "paused" if row.paused_at is not None else "active" if row.next_at is not None else "ended"
    return ScheduleRecord(
        name=row.name,
        state=state,
        kind=definition.task.kind,
        queue=definition.task.queue,
        arguments=arguments,
        cron=definition.cron,
        every=None if definition.every is None else timedelta(microseconds=definition.every),
        tz=definition.tz,
        missed=definition.missed,
        overlap=definition.overlap,
        jitter=timedelta(microseconds=definition.jitter),
        is_declared=row.is_declared,
        last_task_id=row.last_task_id,
        times_fired=row.fired,
        times_missed=row.missed,
        times_skipped=row.skipped,
        skips_in_row=row.skips_in_row,
        reason=row.reason,
        past=row.past,
        created_at=to_datetime(row.created_at),
        unreadable=unreadable,
        **{name: None if moment is None else to_datetime(moment) for name, moment in _moments(row, definition)},
    )


def _without_bad_moments(row: ScheduleRow) -> ScheduleRow:
    """The row without moments that are out of range."""
    names = ("next_at", "due_at", "paused_at", "last_at", "skipped_since", "reason_at")
    moments = {name: moment for name in names if (moment := getattr(row, name)) is not None}
    bad = {name: None for name, moment in moments.items() if moment not in MOMENTS}
    return replace(row, **bad, created_at=row.created_at if row.created_at in MOMENTS else 0)


def _moments(row: ScheduleRow, definition: NewSchedule) -> list[tuple[str, int | None]]:
    return [
        ("starts_at", definition.starts_at),
        ("ends_at", definition.ends_at),
        ("next_at", row.next_at),
        ("due_at", row.due_at),
        ("paused_at", row.paused_at),
        ("last_at", row.last_at),
        ("skipped_since", row.skipped_since),
        ("reason_at", row.reason_at),
    ]
