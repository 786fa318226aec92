"""Explains a schedule: when it fires next, why it does not fire, and why its tasks do not run."""

from __future__ import annotations

from datetime import datetime

from synergon.explain.explanation import ScheduleExplanation
from synergon.explain.text import when
from synergon.model.lifecycle import State
from synergon.model.record import to_datetime
from synergon.model.schedules import ScheduleRecord
from synergon.model.task_records import TaskRecord
from synergon.options.timetable import zone
from synergon.stores.base import Store


async def explain_schedule(store: Store, schedule: ScheduleRecord) -> ScheduleExplanation:
    """Explain a schedule."""
    now = to_datetime(await store.now())
    nodes = [node for node in await store.nodes() if node.lease_remaining > 0]
    is_known = any(schedule.kind in node.kinds for node in nodes)
    last: TaskRecord | None = None
    if schedule.last_task_id is not None:
        (last,) = await store.get([schedule.last_task_id])
    parts = [
        _outlook(schedule, now),
        _skips(schedule, last, now),
        _last(schedule, last, now),
        f"{schedule.times_missed} missed in all" if schedule.times_missed else "",
        "" if is_known else f"no live node knows the kind {schedule.kind!r}: its tasks wait",
    ]
    sentence = "; ".join(part for part in parts if part)
    return ScheduleExplanation(name=schedule.name, state=schedule.state, sentence=sentence, is_kind_known=is_known)


def local(moment: datetime, tz: str, now: datetime) -> str:
    """The moment in the zone of a schedule: `10:02:00`, with the date if it is not today."""
    here, today = moment.astimezone(zone(tz)), now.astimezone(zone(tz))
    return f"{here:%H:%M:%S}" if here.date() == today.date() else f"{here:%Y-%m-%d %H:%M:%S}"


def _outlook(schedule: ScheduleRecord, now: datetime) -> str:
    if schedule.next_at is None or schedule.due_at is None:
        return "ended: it has no further occurrence"
    next_text = f"next at {local(schedule.next_at, schedule.tz, now)} {schedule.tz} ({when(schedule.due_at, now)})"
    match schedule.state:
        case "paused":
            since = "" if schedule.paused_at is None else f" since {local(schedule.paused_at, schedule.tz, now)}"
            return f"paused{since}: its occurrences are skipped"
        case "undeclared":
            return "declared in code, and no live worker has that code: it does not fire"
        case _:
            return next_text


def _skips(schedule: ScheduleRecord, last: TaskRecord | None, now: datetime) -> str:
    if not schedule.skips_in_row or schedule.skipped_since is None or schedule.state == "paused":
        return ""
    since = local(schedule.skipped_since, schedule.tz, now)
    reason = schedule.reason
    if last is not None and reason == f"task {last.id} has not ended":
        reason = f"task {last.id} {_STATES.get(last.state, 'has ended by now')}"
    return f"skipped {schedule.skips_in_row} × since {since}: {reason}"


_STATES = {
    State.RUNNING: "still runs",
    State.READY: "is ready and has not started",
    State.SCHEDULED: "is scheduled for later",
    State.WAITING: "still waits",
}


def _last(schedule: ScheduleRecord, last: TaskRecord | None, now: datetime) -> str:
    if schedule.last_at is None or schedule.skips_in_row:
        return "" if schedule.times_fired or schedule.skips_in_row else "has not fired yet"
    at = local(schedule.last_at, schedule.tz, now)
    what = "deleted or pruned" if last is None else str(last.state)
    return f"last fired for {at}: task {schedule.last_task_id} is {what}"
