"""Schedules: each occurrence creates at most one task, and one that creates none is counted with its reason."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from tests.stores.actions import HOUR, OUTCOMES, Worker, listed
from tests.support import TOO_DEEPLY_NESTED

from synergon.errors import OptionError
from synergon.model.lifecycle import State
from synergon.model.operator_actions import NewAction
from synergon.model.record import from_datetime
from synergon.model.schedules import MOST_PAST, FiredTask, NewSchedule, ScheduleRecord
from synergon.model.tasks import NewTask
from synergon.options.overrides import Overrides
from synergon.options.timetable import Due, Timetable
from synergon.stores.base import Store
from synergon.stores.base_store import BaseStore
from synergon.stores.rows import ScheduleRow
from synergon.stores.session import Session

MINUTE = HOUR // 60


def every(minutes: int = 10, *, name: str = "report", kind: str = "work", **options: Any) -> NewSchedule:
    return NewSchedule(
        name=name, task=NewTask(kind=kind, key=options.pop("key", None)), every=minutes * MINUTE, **options
    )


async def row_of(store: Store, name: str = "report") -> ScheduleRow:
    async def read(session: Session) -> ScheduleRow:
        return (await session.schedules.locked([name]))[name]

    return await cast(BaseStore, store)._transact(read)


async def change(store: Store, name: str = "report", **values: Any) -> None:
    """Write into the row of a schedule, whatever the rules would say."""
    row = await row_of(store, name)

    async def write(session: Session) -> int:
        return await session.schedules.write([(row.next_at, replace(row, **values))])

    assert await cast(BaseStore, store)._transact(write) == 1


async def outage(store: Store, minutes: float, name: str = "report") -> None:
    """Let time pass in which no node fires: the grid of the schedule moves into the past."""
    row = await row_of(store, name)
    assert row.next_at is not None
    assert row.due_at is not None
    by = round(minutes * MINUTE)
    await change(store, name, anchor=row.anchor - by, next_at=row.next_at - by, due_at=row.due_at - by)


async def get(store: Store, name: str = "report") -> ScheduleRecord:
    (found,) = [schedule for schedule in await store.schedules() if schedule.name == name]
    return found


async def fire(store: Store, *declared: str, limit: int = 100) -> list[FiredTask]:
    return list((await store.fire(declared, limit)).tasks)


def numbers(record: ScheduleRecord) -> tuple[int, int, int]:
    return record.times_fired, record.times_missed, record.times_skipped


async def moments_of(store: Store) -> list[int]:
    """The nominal moments of all tasks, by id."""
    records = await store.get(sorted(await listed(store)))
    overrides = [msgspec.json.decode(record.overrides or b"{}", type=Overrides) for record in records if record]
    return [found.scheduled_for or 0 for found in overrides]


# ---------------------------------------------------------------- firing


async def test_an_occurrence_creates_one_task_and_the_next_one_follows_on_the_grid(store: Store) -> None:
    created = await store.create_schedule(every(10))
    assert created is not None
    assert created.next_at is not None
    assert from_datetime(created.next_at) - from_datetime(created.created_at) == 10 * MINUTE
    assert await fire(store) == []
    await outage(store, 11)
    due = (await row_of(store)).next_at
    fired = await store.fire((), 100)
    (task,) = fired.tasks
    assert (task.kind, task.state, task.schedule) == ("work", State.READY, "report")
    assert fired.next_in is not None
    assert 8 * MINUTE < fired.next_in <= 9 * MINUTE
    record = await get(store)
    assert numbers(record) == (1, 0, 0)
    assert (record.last_task_id, record.reason) == (task.id, None)
    assert await moments_of(store) == [due]
    assert await fire(store) == []


async def test_nodes_that_fire_at_once_create_one_task_for_each_occurrence(store: Store) -> None:
    names = [f"report-{number:02}" for number in range(20)]
    for name in names:
        assert await store.create_schedule(every(name=name, overlap="queue", missed="all"))
        await outage(store, 35, name)
    await asyncio.gather(*(store.fire((), 7) for _ in range(12)))
    while (await store.fire((), 7)).next_in == 0:
        pass
    assert len(await listed(store, limit=1000)) == 60
    assert {numbers(await get(store, name)) for name in names} == {(3, 0, 0)}


async def test_a_bounded_number_is_fired_at_once_and_the_rest_is_due_now(store: Store) -> None:
    for name in "abc":
        assert await store.create_schedule(every(name=name))
        await outage(store, 11, name)
    fired = await store.fire((), 2)
    assert len(fired.tasks) == 2
    assert fired.next_in == 0
    assert len(await fire(store)) == 1


async def test_a_schedule_that_begins_later_and_ends_fires_between_the_two_and_is_then_ended(store: Store) -> None:
    now = await store.now()
    schedule = every(10, starts_at=now + HOUR, ends_at=now + HOUR + 25 * MINUTE, overlap="queue", missed="all")
    created = await store.create_schedule(schedule)
    assert created is not None
    assert created.next_at is not None
    assert from_datetime(created.next_at) == now + HOUR
    by = HOUR + 30 * MINUTE  # it is over by now
    moved = replace(schedule, starts_at=now + HOUR - by, ends_at=now + HOUR + 25 * MINUTE - by)
    row = await row_of(store)
    assert row.next_at is not None
    await change(
        store, definition=msgspec.json.encode(moved), anchor=row.anchor - by, next_at=row.next_at - by, due_at=0
    )
    assert len(await fire(store)) == 3
    record = await get(store)
    assert (record.state, record.next_at, record.due_at) == ("ended", None, None)
    assert (await store.fire((), 100)).next_in is None


async def test_each_occurrence_has_its_own_delay_which_never_changes(store: Store) -> None:
    created = await store.create_schedule(every(10, jitter=9 * MINUTE))
    assert created is not None
    assert created.next_at is not None
    assert created.due_at is not None
    delay = from_datetime(created.due_at) - from_datetime(created.next_at)
    assert 0 <= delay < 9 * MINUTE
    await outage(store, 10 + delay / MINUTE - 0.1)
    assert await fire(store) == []
    await change(store, due_at=await store.now())
    assert len(await fire(store)) == 1


# ---------------------------------------------------------------- missed


@pytest.mark.parametrize(("missed", "expected"), [("one", [-2, -1]), ("skip", [-1]), ("all", [-5, -4, -3, -2, -1])])
async def test_after_an_outage_the_option_missed_decides_how_many_old_ones_run(
    store: Store, missed: Any, expected: list[int]
) -> None:
    assert await store.create_schedule(every(10, missed=missed, overlap="queue"))
    await outage(store, 55)
    first = (await row_of(store)).next_at
    assert first is not None
    fired = await fire(store)
    assert await moments_of(store) == [first + (5 + number) * 10 * MINUTE for number in expected]
    record = await get(store)
    assert numbers(record) == (len(expected), 5 - len(expected), 0)
    assert record.last_task_id == fired[-1].id
    assert record.reason == (None if missed == "all" else "no node fired it in time")
    assert record.next_at is not None
    assert from_datetime(record.next_at) == first + 50 * MINUTE


@pytest.mark.parametrize("missed", ["one", "skip"])
async def test_where_one_task_is_allowed_the_latest_occurrence_runs(store: Store, missed: Any) -> None:
    assert await store.create_schedule(every(10, missed=missed))
    await outage(store, 55)
    first = (await row_of(store)).next_at
    assert first is not None
    assert len(await fire(store)) == 1
    assert await moments_of(store) == [first + 40 * MINUTE]
    assert numbers(await get(store)) == (1, 4, 0)


@pytest.mark.parametrize(("missed", "number"), [("one", 1), ("skip", 0)])
async def test_the_last_occurrence_of_all_is_missed_when_the_next_would_have_been_due(
    store: Store, missed: Any, number: int
) -> None:
    now = await store.now()
    schedule = every(10, missed=missed, ends_at=now + 15 * MINUTE)
    assert await store.create_schedule(schedule)
    moved = replace(schedule, ends_at=now - 45 * MINUTE)
    await outage(store, 60)
    await change(store, definition=msgspec.json.encode(moved))
    assert len(await fire(store)) == number
    assert numbers(await get(store)) == (number, 1 - number, 0)


async def test_at_most_a_thousand_missed_ones_run_and_all_others_are_counted(store: Store) -> None:
    assert await store.create_schedule(every(10, missed="all", overlap="queue"))
    await outage(store, 10 * 1500 + 5)
    assert len(await fire(store)) == 1001
    assert numbers(await get(store)) == (1001, 499, 0)


async def test_a_long_outage_of_a_cron_expression_is_counted_in_parts(store: Store) -> None:
    schedule = NewSchedule(name="report", task=NewTask(kind="work"), cron="* * * * *", tz="Europe/Berlin")
    assert await store.create_schedule(schedule)
    row = await row_of(store)
    assert row.next_at is not None
    first = row.next_at - 1000 * MINUTE
    await change(store, next_at=first, due_at=first)
    parts = 0
    while (await store.fire((), 100)).next_in == 0:
        parts += 1
    assert parts >= 4
    fired, missed, skipped = numbers(await get(store))
    after = (await row_of(store)).next_at
    assert after is not None
    assert (fired, skipped) == (1, 0)
    assert fired + missed == (after - first) // MINUTE
    assert await moments_of(store) == [after - MINUTE]


# ---------------------------------------------------------------- overlap, keys, pause


async def test_an_occurrence_is_skipped_while_the_task_before_has_not_ended(store: Store, worker: Worker) -> None:
    assert await store.create_schedule(every(10))
    await outage(store, 11)
    (task,) = await fire(store)
    first_skipped = (await row_of(store)).next_at
    for _ in range(2):
        await outage(store, 10)
        assert await fire(store) == []
    claim = await worker.claim_one()
    await outage(store, 10)
    assert await fire(store) == []
    record = await get(store)
    assert numbers(record) == (1, 0, 3)
    assert record.skips_in_row == 3
    assert record.reason == f"task {task.id} has not ended"
    assert record.skipped_since is not None
    assert first_skipped is not None
    assert from_datetime(record.skipped_since) == first_skipped - 10 * MINUTE
    await worker.finish(claim, OUTCOMES["succeeded"])
    await outage(store, 10)
    assert len(await fire(store)) == 1
    record = await get(store)
    assert numbers(record) == (2, 0, 3)
    assert (record.skips_in_row, record.skipped_since) == (0, None)


async def test_with_overlap_queue_every_occurrence_creates_a_task(store: Store) -> None:
    assert await store.create_schedule(every(10, overlap="queue"))
    for number in range(1, 4):
        await outage(store, 11 if number == 1 else 10)
        assert len(await fire(store)) == 1
        assert numbers(await get(store)) == (number, 0, 0)


async def test_an_occurrence_whose_key_is_taken_is_skipped(store: Store) -> None:
    (holder,) = await store.insert([NewTask(kind="work", key="k")])
    assert await store.create_schedule(every(10, key="k", overlap="queue"))
    await outage(store, 11)
    assert await fire(store) == []
    record = await get(store)
    assert numbers(record) == (0, 0, 1)
    assert (record.reason, record.last_task_id) == (f"task {holder.id} holds its key", None)


async def test_during_a_pause_occurrences_are_skipped_and_a_resume_does_not_catch_up(store: Store) -> None:
    assert await store.create_schedule(every(10, missed="all", overlap="queue"))
    assert (await act(store, "pause_schedule")).outcome == "paused"
    assert (await act(store, "pause_schedule")).outcome == "was paused already"
    assert (await get(store)).state == "paused"
    await outage(store, 35)
    assert await fire(store) == []
    assert numbers(await get(store)) == (0, 0, 3)
    assert (await act(store, "resume_schedule")).outcome == "resumed"
    assert (await act(store, "resume_schedule")).outcome == "was not paused"
    assert await fire(store) == []
    await outage(store, 10)
    assert len(await fire(store)) == 1


async def test_a_resume_skips_the_occurrences_of_a_pause_in_which_no_node_ran(store: Store) -> None:
    assert await store.create_schedule(every(10, missed="all", overlap="queue"))
    await act(store, "pause_schedule")
    await outage(store, 35)
    assert (await act(store, "resume_schedule")).outcome == "resumed"
    record = await get(store)
    assert (numbers(record), record.reason, record.state) == ((0, 0, 3), "the schedule is paused", "active")
    assert await fire(store) == []
    await outage(store, 10)
    assert len(await fire(store)) == 1
    assert numbers(await get(store)) == (1, 0, 3)


@pytest.mark.parametrize("options", [{"every": 100_000}, {"cron": "* * * * *"}])
async def test_a_resume_after_a_year_takes_little_work(
    store: Store, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Due] = []
    due = Timetable.due

    def counted(timetable: Timetable, first: int, now: int, keep: int) -> Due:
        steps.append(due(timetable, first, now, keep))
        return steps[-1]

    monkeypatch.setattr(Timetable, "due", counted)
    task = NewTask(kind="work")
    assert await store.create_schedule(NewSchedule(name="report", task=task, **options))
    await act(store, "pause_schedule")
    await outage(store, 365 * 24 * 60)
    assert (await act(store, "resume_schedule")).outcome == "resumed"
    record = await get(store)
    assert len(steps) <= 10
    assert max(len(step.moments) for step in steps) <= 1
    assert record.times_skipped >= 2000
    assert (record.times_fired, record.times_missed) == (0, 0)
    assert record.next_at is not None
    assert from_datetime(record.next_at) > await store.now() - MINUTE


async def act(store: Store, verb: Any, name: str = "report") -> Any:
    return await store.act(NewAction(verb=verb, subject=name, who="ada"))


@pytest.mark.parametrize("verb", ["pause_schedule", "resume_schedule", "delete_schedule"])
async def test_an_action_on_a_schedule_that_does_not_exist_is_recorded_as_rejected(store: Store, verb: Any) -> None:
    assert (await act(store, verb, "nothing")).outcome == "rejected: no schedule of that name"


# ---------------------------------------------------------------- run at once


async def test_one_more_task_obeys_overlap_and_changes_no_occurrence(store: Store, worker: Worker) -> None:
    created = await store.create_schedule(every(10))
    assert created is not None
    first = run = await store.run_schedule("report", "ada")
    assert first is not None
    assert run is not None
    assert run.task is not None
    again = await store.run_schedule("report", "ada")
    assert again is not None
    assert (again.task, again.reason) == (None, f"task {run.task.id} has not ended")
    record = await get(store)
    assert (record.next_at, record.last_task_id, numbers(record)) == (created.next_at, run.task.id, (0, 0, 0))
    (moment,) = await moments_of(store)
    assert abs(moment - await store.now()) < HOUR
    await outage(store, 11)
    assert await fire(store) == []  # that task counts as the one before
    await worker.finish(await worker.claim_one(), OUTCOMES["failed"])
    run = await store.run_schedule("report", "ada")
    assert run is not None
    assert run.task is not None
    assert await store.run_schedule("nothing", "ada") is None
    assert [(record.subject, record.outcome) for record in await store.audit()] == [
        ("nothing", "rejected: no schedule of that name"),
        ("report", f"created task {run.task.id}"),
        ("report", f"rejected: {again.reason}"),
        ("report", f"created task {first.task and first.task.id}"),
    ]


async def test_one_more_task_of_a_queueing_schedule_is_always_created(store: Store) -> None:
    assert await store.create_schedule(every(10, overlap="queue"))
    for _ in range(2):
        run = await store.run_schedule("report", "ada")
        assert run is not None
        assert run.task is not None


# ---------------------------------------------------------------- create, update, delete


async def test_of_two_that_create_one_name_at_once_the_second_is_told(store: Store) -> None:
    created = await asyncio.gather(*(store.create_schedule(every(minutes)) for minutes in range(1, 9)))
    assert len([record for record in created if record is not None]) == 1
    assert len(await store.schedules()) == 1


async def test_a_schedule_without_any_occurrence_is_rejected_and_not_stored(store: Store) -> None:
    now = await store.now()
    with pytest.raises(OptionError, match="no occurrence"):
        await store.create_schedule(every(10, ends_at=now + MINUTE))
    assert await store.schedules() == []


async def test_an_update_changes_what_it_names_and_counts_what_was_due_before(store: Store) -> None:
    assert await store.create_schedule(every(10, missed="skip"))
    await outage(store, 35)
    changed = await store.update_schedule("report", {"every": 20 * MINUTE})
    assert changed is not None
    assert (changed.missed, numbers(changed)) == ("skip", (0, 3, 0))
    assert changed.next_at is not None
    assert 19 * MINUTE < from_datetime(changed.next_at) - await store.now() <= 20 * MINUTE
    assert await store.update_schedule("nothing", {"every": 1}) is None


async def test_an_update_of_the_task_alone_leaves_the_grid(store: Store) -> None:
    created = await store.create_schedule(every(10))
    assert created is not None
    changed = await store.update_schedule("report", {"task": NewTask(kind="other")})
    assert changed is not None
    assert (changed.next_at, changed.kind) == (created.next_at, "other")


async def test_an_update_while_an_occurrence_waits_for_its_jitter_leaves_the_occurrence(store: Store) -> None:
    assert await store.create_schedule(every(10, jitter=9 * MINUTE))
    await outage(store, 10)
    await change(store, due_at=await store.now() + MINUTE)
    before = await row_of(store)
    changed = await store.update_schedule("report", {"task": NewTask(kind="other"), "jitter": 0})
    assert changed is not None
    assert (await row_of(store)).next_at == before.next_at
    (task,) = await fire(store)
    assert (task.kind, numbers(await get(store))) == ("other", (1, 0, 0))


async def test_an_update_that_drops_an_occurrence_which_waits_for_its_jitter_counts_it(store: Store) -> None:
    assert await store.create_schedule(every(10, jitter=9 * MINUTE))
    await outage(store, 10)
    await change(store, due_at=await store.now() + MINUTE)
    changed = await store.update_schedule("report", {"every": 20 * MINUTE})
    assert changed is not None
    assert (numbers(changed), changed.reason) == ((0, 0, 1), "the schedule was changed before it was due")
    assert changed.next_at is not None
    assert from_datetime(changed.next_at) > await store.now()


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_a_change_after_the_clock_was_set_back_loses_no_occurrence_that_waits_for_its_jitter(
    store: Store, is_dropped: bool
) -> None:
    assert await store.create_schedule(every(10, jitter=9 * MINUTE))
    waiting = (await row_of(store)).next_at
    assert waiting is not None
    # The occurrence before was counted, late, when this one waited for its jitter. Then the clock was set back.
    counted = waiting + MINUTE
    await change(store, due_at=counted + MINUTE, skipped=1, reason="task 1 has not ended", reason_at=counted)
    changes = {"every": 7 * MINUTE} if is_dropped else {"task": NewTask(kind="other")}
    changed = await store.update_schedule("report", changes | {"jitter": 0})
    row = await row_of(store)
    assert changed is not None
    assert row.next_at is not None
    if is_dropped:
        assert (numbers(changed), row.reason_at) == ((0, 0, 2), counted)
        assert row.next_at > counted
    else:
        assert (numbers(changed), row.next_at) == ((0, 0, 1), waiting)


@pytest.mark.parametrize("is_declared", [False, True])
async def test_a_change_after_the_clock_was_set_back_makes_no_occurrence_due_again(
    store: Store, is_declared: bool
) -> None:
    if is_declared:
        await store.declare_schedules([every(10)])
    else:
        assert await store.create_schedule(every(10))
    await outage(store, 10)
    assert len(await fire(store, "report")) == 1
    fired = (await row_of(store)).last_at
    assert fired is not None
    await outage(store, -60)
    await change(store, last_at=fired + HOUR)
    if is_declared:
        await store.declare_schedules([every(10, kind="other")])
    else:
        assert await store.update_schedule("report", {"task": NewTask(kind="other")})
    assert (await row_of(store)).next_at == fired + HOUR + 10 * MINUTE


async def test_an_update_that_does_not_fit_changes_nothing(store: Store) -> None:
    before = await store.create_schedule(every(10))
    with pytest.raises(OptionError, match="overlap"):
        await store.update_schedule("report", {"missed": "all"})
    with pytest.raises(OptionError, match="no occurrence"):
        await store.update_schedule("report", {"ends_at": 0})
    assert await get(store) == before


async def test_a_deleted_schedule_fires_no_more_and_its_tasks_remain(store: Store) -> None:
    assert await store.create_schedule(every(10, overlap="queue"))
    await outage(store, 11)
    assert len(await fire(store)) == 1
    assert (await act(store, "delete_schedule")).outcome == "deleted"
    assert await store.schedules() == []
    assert (await store.fire((), 100)).next_in is None
    assert len(await listed(store)) == 1


# ---------------------------------------------------------------- declared in code


async def test_a_declared_schedule_is_fired_by_a_node_that_declares_it_and_by_no_other(store: Store) -> None:
    assert await store.declare_schedules([every(10)]) == []
    await outage(store, 11)
    other = await store.fire(["another"], 100)
    assert (other.tasks, other.next_in) == ((), None)
    assert (await get(store)).is_declared
    assert len(await fire(store, "another", "report")) == 1


async def test_a_declaration_that_has_not_changed_changes_nothing(store: Store) -> None:
    await store.declare_schedules([every(10)])
    await outage(store, 35)
    before = await row_of(store)
    await store.declare_schedules([every(10)])
    assert await row_of(store) == before


async def test_a_changed_declaration_is_computed_anew_and_a_pause_survives(store: Store) -> None:
    await store.declare_schedules([every(10)])
    await act(store, "pause_schedule")
    await store.declare_schedules([every(30), every(10, name="new")])
    record = await get(store)
    assert (record.state, record.is_declared) == ("paused", True)
    assert record.next_at is not None
    assert 29 * MINUTE < from_datetime(record.next_at) - await store.now() <= 30 * MINUTE
    assert [schedule.name for schedule in await store.schedules()] == ["new", "report"]


async def test_code_does_not_touch_what_was_made_at_run_time_and_cannot_be_changed_at_run_time(store: Store) -> None:
    before = await store.create_schedule(every(10))
    assert await store.declare_schedules([every(30), every(name="coded")]) == ["report"]
    assert await get(store) == before
    assert await store.create_schedule(every(5, name="coded")) is None
    with pytest.raises(OptionError, match="declared in code"):
        await store.update_schedule("coded", {"every": MINUTE})


async def test_workers_that_start_at_once_declare_each_schedule_once(store: Store) -> None:
    definitions = [every(10, name=f"report-{number}") for number in range(10)]
    await asyncio.gather(*(store.declare_schedules(definitions) for _ in range(6)))
    assert len(await store.schedules()) == 10


# ---------------------------------------------------------------- rows that cannot be read


@pytest.mark.parametrize(
    "definition",
    [
        *(b"{}", b"[1]", b'{"name":"report","task":{"kind":"work"},"cron":"0 0 30 2 *"}', b'{"name":1}'),
        *(b'{"name":"report","task":{"kind":"work"},"every":%d}' % every for every in (-1, 0, 2**62)),
        b'{"name":"report","task":{"kind":"work"},"every":10000000,"jitter":-1}',
        b'{"name":"report","task":{"kind":"work"},"every":10000000,"ends_at":9223372036854775807}',
        b'{"name":"report","task":{"kind":"work","priority":9223372036854775808},"every":10000000}',
        *(
            b'{"name":"report","task":{"kind":"work",%b},"every":10000000}' % field
            for field in (b'"units":0', b'"keep_for":-1', b'"max_attempts":0', b'"after":[{"task_id":4711}]')
        ),
        b'{"name":"report","task":{"kind":"wo\\u0000rk"},"every":10000000}',
        b'{"name":"report","task":{"kind":"work","overrides":"WzFd"},"every":10000000}',
        pytest.param(
            b'{"name":"report","task":{"kind":"work"},"every":10000000,"newer":%b}' % TOO_DEEPLY_NESTED.encode(),
            id="deep",
        ),
    ],
)
async def test_a_row_that_cannot_be_read_harms_no_other_and_is_tried_again_later(
    store: Store, definition: bytes
) -> None:
    assert await store.create_schedule(every(10))
    assert await store.create_schedule(every(10, name="sound"))
    for name in ("report", "sound"):
        await outage(store, 11, name)
    before = await row_of(store)
    await change(store, definition=definition)
    fired = await store.fire((), 100)
    assert [task.schedule for task in fired.tasks] == ["sound"]
    assert list(fired.broken) == ["report"]
    after = await row_of(store)
    assert after.next_at == before.next_at
    assert after.reason is not None
    assert len(await store.schedules()) == 2
    await change(store, definition=before.definition, due_at=before.due_at)
    assert len(await fire(store)) == 1


@pytest.mark.parametrize("fields", [{"fired": 2**63 - 1}, {"anchor": 2**63 - 1}])
async def test_a_row_with_a_number_out_of_range_harms_no_other(store: Store, fields: dict[str, Any]) -> None:
    assert await store.create_schedule(every(10))
    assert await store.create_schedule(every(10, name="sound"))
    for name in ("report", "sound"):
        await outage(store, 11, name)
    await change(store, **fields)
    fired = await store.fire((), 100)
    assert [task.schedule for task in fired.tasks] == ["sound"]
    assert list(fired.broken) == ["report"]
    assert [record.name for record in await store.schedules()] == ["report", "sound"]
    found = await store.run_schedule("report", "ada")
    assert found is not None
    assert found.task is None
    with pytest.raises(OptionError, match="cannot be read"):
        await store.update_schedule("report", {"overlap": "queue"})


# ---------------------------------------------------------------- the latest occurrences


def past_of(record: ScheduleRecord) -> list[tuple[str, int, str | None]]:
    return [(one.outcome, one.count, one.reason) for one in record.past]


async def test_the_latest_occurrences_are_kept_with_what_became_of_them(store: Store) -> None:
    assert await store.create_schedule(every(10, missed="skip"))
    await outage(store, 35)
    (task,) = await fire(store)
    await outage(store, 11)
    assert await fire(store) == []
    await outage(store, 11)
    assert await fire(store) == []
    await act(store, "pause_schedule")
    await outage(store, 25)
    assert await fire(store) == []
    record = await get(store)
    assert past_of(record) == [
        ("missed", 2, "no node fired it in time"),
        ("fired", 1, None),
        ("skipped", 2, f"task {task.id} has not ended"),
        ("skipped", 3, "the schedule is paused"),
    ]
    assert [one.task_id for one in record.past] == [None, task.id, None, None]
    assert record.past[1].at == record.last_at


async def test_few_of_the_latest_occurrences_are_kept(store: Store) -> None:
    assert await store.create_schedule(every(10, overlap="queue", missed="all"))
    await outage(store, 10 * (MOST_PAST + 5) + 1)
    tasks = await fire(store)
    assert len(tasks) == MOST_PAST + 5
    assert [one.task_id for one in (await get(store)).past] == [task.id for task in tasks[5:]]
    run = await store.run_schedule("report", "ada@host")
    assert run is not None
    assert run.task is not None
    past = (await get(store)).past
    assert (len(past), past[-1].task_id, past[-1].reason) == (MOST_PAST, run.task.id, "an operator has run it")


async def test_a_change_by_an_operator_is_in_the_audit_without_the_arguments_of_its_call(store: Store) -> None:
    assert await store.create_schedule(every(10))
    task = NewTask(kind="other", payload=b'{"password": "hunter22"}')
    assert await store.update_schedule("report", {"every": 30 * MINUTE})
    assert await store.audit() == [], "the application has changed it"
    assert await store.update_schedule("report", {"every": 20 * MINUTE, "task": task}, "ada@host")
    (entry,) = await store.audit()
    assert (entry.verb, entry.subject, entry.who) == ("update_schedule", "report", "ada@host")
    assert entry.value == {"every": 20 * MINUTE, "task": "other"}
    assert entry.outcome == "changed: every, task"


# ---------------------------------------------------------------- the guard


async def test_a_row_is_written_only_while_its_next_occurrence_is_the_one_that_was_read(store: Store) -> None:
    assert await store.create_schedule(every(10))
    row = await row_of(store)
    assert row.next_at is not None

    async def write(session: Session) -> int:
        return await session.schedules.write([((row.next_at or 0) - 1, replace(row, fired=7))])

    assert await cast(BaseStore, store)._transact(write) == 0
    assert await row_of(store) == row
